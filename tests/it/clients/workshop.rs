//! Where clients are made and checked: those in `examples/clients` and those that generators make of the document.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::OnceCell;

use crate::support::PATIENCE;

/// A client, and a program that does with it what a test says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Python,
    TypeScript,
    GeneratedPython,
    GeneratedTypeScript,
}

/// How long a client tries where the test does not say: less than a test waits for its answer.
const RETRY_FOR_S: u32 = 12;

/// A client at work. It ends when this is dropped.
pub struct Driver {
    kind: Kind,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Where `make clients` puts what the clients are made, checked and run with.
fn tools() -> PathBuf {
    root().join("target/clients")
}

/// A program that `make clients` has installed.
pub fn tool(name: &str) -> PathBuf {
    let folder = if name.starts_with("py") || name == "mypy" || name.starts_with("openapi-python") {
        "venv/bin"
    } else {
        "node_modules/.bin"
    };
    installed(folder).join(name)
}

/// What `make clients` has installed here.
pub fn installed(folder: &str) -> PathBuf {
    let file = |name: &str| std::fs::read_to_string(root().join(name)).unwrap_or_default();
    let wanted = file("tests/clients/requirements.txt") + &file("tests/clients/package-lock.json");
    let is_there = file("target/clients/versions").trim() == wanted.trim();
    assert!(
        is_there,
        "what the clients are tested with is not there, or of another version: run `make clients` first"
    );
    tools().join(folder)
}

/// Runs a tool of `make clients` to its end, and returns what it printed; the test fails where the tool does.
pub async fn run(command: &mut Command) -> String {
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", tools().join("venv/bin").display()));
    let output = command.stdin(Stdio::null()).output().await.unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

/// Makes the generated clients of the document, and JavaScript of all that is TypeScript. Once for all tests.
async fn made() -> &'static Path {
    static MADE: OnceCell<PathBuf> = OnceCell::const_new();
    MADE.get_or_init(|| async {
        // Below the folder with the packages, which are looked for upwards from here.
        let place = tools().join("made");
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).unwrap();
        let ours = ["tests/clients/drive.ts", "tests/clients/generated.ts", "tests/clients/tsconfig.json"];
        for file in ours.into_iter().chain(["examples/clients/fencepost.ts"]) {
            let from = root().join(file);
            std::fs::copy(&from, place.join(from.file_name().unwrap())).unwrap();
        }
        let document = root().join("openapi/openapi.json");
        let typescript = async {
            let schema = place.join("schema.d.ts");
            run(Command::new(tool("openapi-typescript")).arg(&document).arg("-o").arg(schema)).await;
            run(Command::new(tool("tsc")).arg("-p").arg(&place)).await;
        };
        let python = async {
            // A warning would mean that something of the document was left out.
            let args = ["generate", "--meta", "none", "--fail-on-warning", "--path"];
            let mut command = Command::new(tool("openapi-python-client"));
            let command = command.args(args).arg(&document).arg("--output-path");
            run(command.arg(place.join("fencepost_api"))).await;
        };
        tokio::join!(typescript, python);
        place
    })
    .await
}

/// Checks the types of all that is Python.
pub async fn check_python() {
    let place = made().await;
    let paths = std::env::join_paths([place, &root().join("examples/clients")]).unwrap();
    let mut command = Command::new(tool("mypy"));
    // What the generator made is only read for its types.
    command.args(["--strict", "--follow-imports=silent", "--cache-dir"]).arg(tools().join("mypy"));
    command.arg("--python-executable").arg(tool("python")).env("MYPYPATH", paths).current_dir(root());
    command.args(["examples/clients/fencepost.py", "tests/clients/drive.py", "tests/clients/generated.py"]);
    run(&mut command).await;
}

/// Python without any package but its own: what stands in `examples/clients` needs no other.
pub fn bare_python(script: &str) -> Command {
    let mut command = Command::new(tool("python"));
    command.arg("-S").arg(root().join(script)).env("PYTHONPATH", root().join("examples/clients"));
    command
}

impl Kind {
    pub const EXAMPLES: [Self; 2] = [Self::Python, Self::TypeScript];
    pub const ALL: [Self; 4] =
        [Self::Python, Self::TypeScript, Self::GeneratedPython, Self::GeneratedTypeScript];

    pub async fn start(self, url: &str) -> Driver {
        self.start_with(url, RETRY_FOR_S).await
    }

    /// One that tries for so long, where it is one of the examples.
    pub async fn start_with(self, url: &str, retry_for_s: u32) -> Driver {
        let made = made().await;
        let node = |script: &str| {
            let mut command = Command::new("node");
            // What later versions have without being asked: `crypto`.
            command.arg("--experimental-global-webcrypto").arg(made.join("out").join(script));
            command
        };
        let mut command = match self {
            Self::Python => bare_python("tests/clients/drive.py"),
            Self::TypeScript => node("drive.js"),
            Self::GeneratedTypeScript => node("generated.js"),
            Self::GeneratedPython => {
                let mut command = Command::new(tool("python"));
                command.arg(root().join("tests/clients/generated.py")).env("PYTHONPATH", made);
                command
            }
        };
        let mut child = command
            .env("FENCEPOST_URL", url)
            .env("RETRY_FOR_S", retry_for_s.to_string())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Driver { kind: self, input: child.stdin.take().unwrap(), child, output }
    }
}

impl Driver {
    /// Has it do this, and returns what came of it.
    pub async fn does(&mut self, what: &str) -> String {
        self.begins(what).await;
        self.says().await
    }

    pub async fn begins(&mut self, what: &str) {
        println!("{:?} is told: {what}", self.kind);
        self.input.write_all(format!("{what}\n").as_bytes()).await.unwrap();
    }

    pub async fn says(&mut self) -> String {
        let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
        let line = line.expect("it says nothing").unwrap().expect("it has ended");
        println!("{:?} says: {line}", self.kind);
        line
    }

    /// Takes a lock, and returns the fencing token.
    pub async fn is_granted(&mut self, what: &str) -> u64 {
        let said = self.does(what).await;
        let number = said.strip_prefix("granted ").unwrap_or_else(|| panic!("{what}: {said}"));
        number.parse().unwrap()
    }

    /// Lets it come to its end, which must be a good one.
    pub async fn ends(mut self) {
        drop(self.input);
        assert!(self.child.wait().await.unwrap().success());
    }
}
