//! Puts files into the program, compressed: the OpenAPI document, and Swagger UI's two from the archive that a crate carries.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use miniz_oxide::deflate::compress_to_vec_zlib;

const DOCUMENT: &str = "openapi/openapi.json";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={DOCUMENT}");
    let target = PathBuf::from(std::env::var("OUT_DIR")?);
    let document = fs::read(DOCUMENT).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    fs::write(target.join("openapi.json.zlib"), compress_to_vec_zlib(&document, 9))?;
    #[cfg(feature = "swagger")]
    for name in ["swagger-ui.css", "swagger-ui-bundle.js"] {
        fs::write(target.join(format!("{name}.gz")), swagger::gzip_of(name)?)?;
    }
    Ok(())
}

#[cfg(feature = "swagger")]
mod swagger {
    use std::error::Error;

    use rawzip::{CompressionMethod, ZipArchive};
    use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED;

    /// Begins every gzip file: its mark, deflate, no flags, no time, and no system.
    const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

    /// A file of `dist/`. Zip and gzip keep the same compressed bytes, so nothing is compressed anew.
    pub(super) fn gzip_of(name: &str) -> Result<Vec<u8>, Box<dyn Error>> {
        let archive = ZipArchive::from_slice(SWAGGER_UI_VENDORED)?;
        let mut entries = archive.entries();
        while let Some(entry) = entries.next_entry()? {
            let path = entry.file_path();
            // The folder above `dist` has the version in its name.
            let is_it = path.as_ref().splitn(2, |byte| *byte == b'/').nth(1)
                == Some(format!("dist/{name}").as_bytes());
            if !is_it || entry.compression_method() != CompressionMethod::DEFLATE {
                continue;
            }
            let length = u32::try_from(entry.uncompressed_size_hint())?;
            let file = archive.get_entry(entry.wayfinder())?;
            return Ok([
                GZIP_HEAD.as_slice(),
                file.data(),
                &entry.crc32().to_le_bytes(),
                &length.to_le_bytes(),
            ]
            .concat());
        }
        Err(format!("the archive of Swagger UI has no compressed {name}").into())
    }
}
