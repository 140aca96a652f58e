//! `bentpipe man` and `bentpipe completions`: what they print is complete, and their readers take it. And the
//! units that the package has: what the documentation says of them is so.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn bentpipe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bentpipe")).args(arguments).output().unwrap()
}

/// Standard output of a command that must succeed.
fn success(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The commands that `--help` of these words lists, and all below them, each with its words.
fn commands(words: &[String]) -> Vec<Vec<String>> {
    let arguments: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
    let help = success(&bentpipe(&arguments));
    let section = help.split("Commands:\n").nth(1).unwrap_or_default();
    let lines = section.lines().take_while(|line| !line.is_empty());
    // The descriptions of long ones go on in further lines, which are indented more.
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let mut all = vec![words.to_vec()];
    for name in names {
        let below: Vec<String> = words.iter().cloned().chain([name.to_owned()]).collect();
        all.extend(commands(&below));
    }
    all
}

/// The exit code of a program that reads `text`; none where it is not installed.
fn judged_by(program: &str, arguments: &[&str], text: &str) -> Option<(bool, String)> {
    let piped = Stdio::piped;
    let child = Command::new(program).args(arguments).stdin(piped()).stdout(piped()).stderr(piped()).spawn();
    let Ok(mut child) = child else {
        println!("skipped: needs {program}");
        return None;
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn every_command_has_a_page_that_is_the_same_alone_and_among_all() {
    let folder = tempfile::tempdir().unwrap();
    success(&bentpipe(&["man", "--out", folder.path().to_str().unwrap()]));
    let all = commands(&[]);
    assert!(all.len() > 12 && all.contains(&vec!["dtn".to_owned(), "send".to_owned()]), "{all:?}");
    for words in &all {
        let name = ["bentpipe"].into_iter().chain(words.iter().map(String::as_str)).collect::<Vec<_>>();
        let page = fs::read_to_string(folder.path().join(format!("{}.1", name.join("-")))).unwrap();
        let arguments: Vec<&str> = ["man"].into_iter().chain(words.iter().map(String::as_str)).collect();
        assert_eq!(success(&bentpipe(&arguments)), page, "{words:?}");
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH DESCRIPTION"), "{words:?}");
    }
    let pages = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(pages, all.len(), "a page for each command, and none of others");
}

#[test]
fn a_reader_of_manual_pages_has_nothing_to_warn_of() {
    let page = success(&bentpipe(&["man", "doctor"]));
    assert!(
        page.contains("\\-\\-fix") && !page.contains("\\-\\-etc"),
        "hidden arguments stay hidden: {page}"
    );
    // What is below a warning are matters of style, long lines above all.
    if let Some((_, said)) = judged_by("mandoc", &["-Tlint", "-Wwarning", "-Ios=Linux"], &page) {
        let told: Vec<_> = said.lines().filter(|line| !line.contains("cannot parse date")).collect();
        assert!(told.is_empty(), "{told:?}");
    }
}

#[test]
fn shells_take_their_completions() {
    for (shell, arguments) in [("bash", &["-n"][..]), ("zsh", &["-n"]), ("fish", &["--no-execute"])] {
        let script = success(&bentpipe(&["completions", shell]));
        for word in ["doctor", "dtn", "man", "status", "top", "reload", "drain", "bypass", "upgrade"] {
            assert!(script.contains(word), "{word} is not in the completions of {shell}");
        }
        if let Some((ok, said)) = judged_by(shell, arguments, &script) {
            assert!(ok, "{shell}: {said}");
        }
    }
}

#[test]
fn a_command_that_there_is_not_is_told_with_those_that_there_are() {
    let output = bentpipe(&["man", "dtn", "sned"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["\"bentpipe dtn\" has no command \"sned\"", "send", "recv"] {
        assert!(text.contains(part), "\"{part}\" is not in: {text}");
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

const UNITS: [&str; 2] = ["bentpipe.service", "bentpipe-dtn.service"];
/// Of systemd: others weigh differently, as far as this.
const DOCUMENTED: &str = "systemd 252 ";
const OTHERS: f64 = 0.5;

/// docs/security.md says how exposed each unit is; this is what systemd says of it.
#[test]
fn the_exposure_of_the_units_matches_the_documentation() {
    let Some((_, version)) = judged_by("systemd-analyze", &["--version"], "") else { return };
    let documentation = fs::read_to_string(repository().join("docs/security.md")).unwrap();
    for unit in UNITS {
        let path = repository().join("dist").join(unit);
        let arguments = ["security", "--offline=yes", "--no-pager", path.to_str().unwrap()];
        let Some((_, said)) = judged_by("systemd-analyze", &arguments, "") else { return };
        let line = said.lines().find(|line| line.contains("Overall exposure level"));
        let line = line.unwrap_or_else(|| panic!("{unit}: {said}"));
        let score: f64 = line.rsplit(": ").next().unwrap().split(' ').next().unwrap().parse().unwrap();
        let row = format!("| `{unit}` | ");
        let row = documentation.lines().find_map(|line| line.strip_prefix(&row));
        let documented: f64 = row.unwrap().trim_end_matches(" |").parse().unwrap();
        let tolerance = if version.starts_with(DOCUMENTED) { 0.01 } else { OTHERS };
        assert!(
            (score - documented).abs() < tolerance,
            "{unit}: docs/security.md has {documented}, it is {score}"
        );
    }
}

/// A key that systemd does not know is passed over at a start, and what it restricts with it.
#[test]
fn systemd_knows_every_key_of_the_units() {
    for unit in UNITS {
        let text = fs::read_to_string(repository().join("dist").join(unit)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(unit);
        let verify = |text: &str| {
            fs::write(&path, text.replace("/usr/bin/bentpipe", env!("CARGO_BIN_EXE_bentpipe"))).unwrap();
            judged_by("systemd-analyze", &["verify", "--man=no", path.to_str().unwrap()], "")
        };
        let Some((ok, said)) = verify(&text) else { return };
        let said: Vec<_> = said.lines().filter(|line| line.contains(unit)).collect();
        assert!(ok && said.is_empty(), "{said:?}");
        let (_, said) = verify(&text.replace("\nProtectHome=", "\nProtectHouse=")).unwrap();
        assert!(said.contains("ProtectHouse"), "verify finds what is wrong: {said}");
    }
}

/// What dpkg runs as root, in the shell that it has.
#[test]
fn the_scripts_of_the_package_are_ones_that_the_shell_takes() {
    for name in ["postinst", "prerm", "postrm"] {
        let script = fs::read_to_string(repository().join("dist/debian").join(name)).unwrap();
        let (ok, said) = judged_by("sh", &["-n"], &script).unwrap();
        assert!(ok, "{name}: {said}");
    }
}
