//! Files of pages, which are in the binary.

use axum::Extension;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use crate::api::problem::{Problem, ProblemType};
use crate::server::InMemory;

pub(in crate::api) const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
pub(in crate::api) const CSS: HeaderValue = HeaderValue::from_static("text/css; charset=utf-8");
pub(in crate::api) const JAVASCRIPT: HeaderValue = HeaderValue::from_static("text/javascript; charset=utf-8");

/// A file of a page.
pub(in crate::api) struct File {
    name: &'static str,
    media_type: HeaderValue,
    bytes: &'static [u8],
    is_gzip: bool,
}

impl File {
    pub(in crate::api) const fn text(
        name: &'static str,
        media_type: HeaderValue,
        text: &'static str,
    ) -> Self {
        Self { name, media_type, bytes: text.as_bytes(), is_gzip: false }
    }

    #[cfg(feature = "swagger")]
    pub(super) const fn gzip(name: &'static str, media_type: HeaderValue, bytes: &'static [u8]) -> Self {
        Self { name, media_type, bytes, is_gzip: true }
    }

    pub(in crate::api) fn response(&self) -> Response {
        let mut response =
            ([(CONTENT_TYPE, self.media_type.clone())], Extension(InMemory), self.bytes).into_response();
        if self.is_gzip {
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

/// The file of this name, or the problem that there is none.
pub(in crate::api) fn one_of(
    files: &[File],
    name: Result<Path<String>, PathRejection>,
    missing: &str,
) -> Response {
    match name.ok().and_then(|Path(name)| files.iter().find(|file| file.name == name)) {
        Some(file) => file.response(),
        None => Problem::new(ProblemType::NotFound, missing).into_response(),
    }
}
