//! A directory in which snippets are run as a reader runs them. Only the address of the gateway is the test's.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tempfile::TempDir;
use tokio::process::Command;

use super::{DOCUMENTED_ADDRESS, snippets};
use kit::Stage;

/// A directory with the scripts of all pages in it, and the gateway that they find.
pub struct Shell {
    directory: TempDir,
    address: String,
}

impl Shell {
    pub fn new(stage: &Stage) -> Self {
        Self::at(stage.gateway.address.to_string())
    }

    pub fn at(address: String) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let scripts = snippets().iter().filter(|snippet| snippet.language == "bash").rev();
        let scripts: BTreeMap<_, _> =
            scripts.filter_map(|snippet| Some((snippet.file.as_deref()?, &snippet.code))).collect();
        for (name, code) in scripts {
            write_program(&directory.path().join(name), code);
        }
        Self { directory, address }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn command(&self, program: impl AsRef<Path>, args: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .args(args)
            .current_dir(self.directory.path())
            .env("FENCEPOST_URL", format!("http://{}", self.address))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// The first pasted snippet that holds this text.
    pub fn pasted(&self, containing: &str) -> String {
        let mut pasted =
            snippets().iter().filter(|snippet| snippet.language == "bash" && snippet.file.is_none());
        let found = pasted.find(|snippet| snippet.code.contains(containing));
        let found = found.unwrap_or_else(|| panic!("no pasted snippet holds {containing:?}"));
        found.code.replace(DOCUMENTED_ADDRESS, &self.address)
    }

    /// Pastes the snippet that holds this text, and stops at the first line that fails.
    pub async fn paste(&self, containing: &str) -> Said {
        let code = self.pasted(containing);
        Said::of(self.command("bash", &["-e", "-u", "-c", &code]).output().await.unwrap())
    }
}

/// Writes a file that can be started.
pub fn write_program(path: &Path, code: &str) {
    std::fs::write(path, code).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// How a program ended, and what it printed.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub text: String,
}

impl Said {
    pub fn of(output: Output) -> Self {
        let stderr = without_progress(&String::from_utf8(output.stderr).unwrap());
        let text = String::from_utf8(output.stdout).unwrap() + &stderr;
        Self { code: output.status.code(), text }
    }

    #[track_caller]
    pub fn expect(self, code: i32, text: &str) -> Self {
        assert!(self.code == Some(code) && self.text.contains(text), "expected {code} {text:?}: {self:?}");
        self
    }
}

/// curl draws its progress on standard error when that is no terminal's only output.
pub fn without_progress(text: &str) -> String {
    let is_progress = |line: &&str| line.contains("% Total") || line.contains("Dload") || line.contains('\r');
    text.lines().filter(|line| !is_progress(line)).map(|line| format!("{line}\n")).collect()
}
