//! Where clients are made and checked: those in `examples/clients` and those that generators make of the document.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::OnceCell;

use kit::PATIENCE;

/// A client, and a program that does with it what a test says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Python,
    AsyncPython,
    JavaScript,
    Go,
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
pub async fn made() -> &'static Path {
    static MADE: OnceCell<PathBuf> = OnceCell::const_new();
    MADE.get_or_init(|| async {
        // Below the folder with the packages, which are looked for upwards from here.
        let place = tools().join("made");
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).unwrap();
        let ours = ["tests/clients/drive.ts", "tests/clients/generated.ts", "tests/clients/tsconfig.json"];
        let client = ["examples/clients/fencepost.mjs", "examples/clients/fencepost.d.mts"];
        for file in ours.into_iter().chain(client) {
            let from = root().join(file);
            std::fs::copy(&from, place.join(from.file_name().unwrap())).unwrap();
        }
        super::page::save("typed.ts", &place, &[]);
        // What the compiler makes of the driver finds the client next to itself.
        std::fs::create_dir(place.join("out")).unwrap();
        std::fs::copy(place.join("fencepost.mjs"), place.join("out/fencepost.mjs")).unwrap();
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
        tokio::join!(typescript, python, make_go(&place));
        place
    })
    .await
}

/// Makes this directory a module of this name with the client in it, and returns what works on it.
pub fn go(directory: &Path, module: &str) -> Command {
    std::fs::create_dir_all(directory.join("fencepost")).unwrap();
    for (from, to) in [("fencepost.go", "fencepost.go"), ("fencepost_once.go", "once.go")] {
        let from = root().join("examples/clients").join(from);
        std::fs::copy(from, directory.join("fencepost").join(to)).unwrap();
    }
    std::fs::write(directory.join("go.mod"), format!("module {module}\n\ngo 1.19\n")).unwrap();
    let mut go = Command::new("go");
    // It asks no one for anything, and leaves what it compiles with the rest of what is made.
    go.env("GOFLAGS", "-mod=mod").env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
    go.env("GOCACHE", tools().join("go-cache")).current_dir(directory);
    go
}

/// The driver of the client in Go, checked and compiled.
async fn make_go(place: &Path) {
    let module = place.join("go");
    std::fs::create_dir_all(&module).unwrap();
    std::fs::copy(root().join("tests/clients/drive.go"), module.join("drive.go")).unwrap();
    for arguments in [&["vet", "./..."][..], &["build", "-o", "drive", "."]] {
        run(go(&module, "example.com/drive").args(arguments)).await;
    }
    let unformatted = run(Command::new("gofmt").args(["-l", "."]).current_dir(&module)).await;
    assert_eq!(unformatted, "");
}

/// Checks the types of all that is Python.
pub async fn check_python() {
    let place = made().await;
    let ours = [root().join("examples/clients"), root().join("tests/clients")];
    let paths = std::env::join_paths([place.to_owned()].iter().chain(&ours)).unwrap();
    let mut command = Command::new(tool("mypy"));
    // What the generator made is only read for its types.
    command.args(["--strict", "--follow-imports=silent", "--cache-dir"]).arg(tools().join("mypy"));
    command.arg("--python-executable").arg(tool("python")).env("MYPYPATH", paths).current_dir(root());
    command.args(["examples/clients/fencepost.py", "examples/clients/fencepost_async.py"]);
    command.args(["tests/clients/drive.py", "tests/clients/drive_async.py", "tests/clients/generated.py"]);
    run(&mut command).await;
}

/// Python without any package but its own: what stands in `examples/clients` needs no other.
pub fn bare_python(script: &str) -> Command {
    let mut command = Command::new(tool("python"));
    command.arg("-S").arg(root().join(script)).env("PYTHONPATH", root().join("examples/clients"));
    command
}

impl Kind {
    pub const EXAMPLES: [Self; 4] = [Self::Python, Self::AsyncPython, Self::JavaScript, Self::Go];
    /// Those in which another part of the program can end what one waits for.
    pub const CANCELABLE: [Self; 3] = [Self::AsyncPython, Self::JavaScript, Self::Go];
    pub const ALL: [Self; 6] = [
        Self::Python,
        Self::AsyncPython,
        Self::JavaScript,
        Self::Go,
        Self::GeneratedPython,
        Self::GeneratedTypeScript,
    ];

    pub async fn start(self, url: &str) -> Driver {
        self.start_in(&[("FENCEPOST_URL", url)]).await
    }

    /// One that tries for so long, where it is one of the examples.
    /// One with these variables in its environment.
    pub async fn start_in(self, variables: &[(&str, &str)]) -> Driver {
        let made = made().await;
        let node = |script: &str| {
            let mut command = Command::new("node");
            command.arg(made.join("out").join(script));
            command
        };
        let mut command = match self {
            Self::Python => bare_python("tests/clients/drive.py"),
            Self::AsyncPython => bare_python("tests/clients/drive_async.py"),
            Self::JavaScript => node("drive.js"),
            Self::Go => Command::new(made.join("go/drive")),
            Self::GeneratedTypeScript => node("generated.js"),
            Self::GeneratedPython => {
                let mut command = Command::new(tool("python"));
                command.arg(root().join("tests/clients/generated.py")).env("PYTHONPATH", made);
                command
            }
        };
        let mut child = command
            .env("RETRY_FOR_S", RETRY_FOR_S.to_string())
            .env("TRY_FOR_S", "1")
            .envs(variables.iter().copied())
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
