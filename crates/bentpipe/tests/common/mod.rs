//! Runs the program as a user does, within bounds.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Far more than any command here needs, in kilobytes: hunger for memory is a failed test and not a machine
/// that swaps.
const ADDRESS_SPACE_KB: &str = "1000000";
/// Far longer than any command here takes, in seconds: a hang is a failed test.
const PATIENCE_S: &str = "120";

/// The program with these arguments, ready to run.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v $0; exec timeout \"$@\"", ADDRESS_SPACE_KB, PATIENCE_S]);
    command.arg(env!("CARGO_BIN_EXE_bentpipe")).args(arguments).stdin(Stdio::null());
    // The C library sets address space aside for each thread: on a machine of many cores that alone would be
    // too much.
    command.env("MALLOC_ARENA_MAX", "2");
    command
}

pub(crate) fn bentpipe(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// The JSON document that a command prints, which must succeed.
pub(crate) fn document(arguments: &[&str]) -> Value {
    serde_json::from_str(&success(&bentpipe(arguments))).unwrap()
}

/// Standard output of a command that must succeed.
pub(crate) fn success(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line on standard error of a command that refuses its work, which must contain all `parts`.
pub(crate) fn refusal(output: &Output, parts: &[&str]) -> String {
    let text = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("bentpipe: ") && output.stdout.is_empty(), "{text}");
    for part in parts {
        assert!(text.contains(part), "\"{part}\" is not in: {text}");
    }
    text
}

/// Arguments that are not understood: exit code 2, the argument and what would be accepted.
pub(crate) fn assert_misuse(arguments: &[&str], parts: &[&str]) {
    let output = bentpipe(arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
    assert!(text.starts_with("error: ") && output.stdout.is_empty(), "{arguments:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{arguments:?}: \"{part}\" is not in: {text}");
    }
}

/// A reader that goes away, as in `2>&1 | head`, is no error.
pub(crate) fn assert_success_without_reader(arguments: &[&str]) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let unheard = writer.try_clone().unwrap();
    let status = command(arguments).stdout(writer).stderr(unheard).status().unwrap();
    assert_eq!(status.code(), Some(0), "{arguments:?}");
}

/// A full disk under standard output is one.
pub(crate) fn assert_failure_on_a_full_disk(arguments: &[&str]) {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(arguments).stdout(full).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write the result: No space left on device"), "{text}");
}

/// Each of the keys is there with a number.
pub(crate) fn assert_numbers(value: &Value, keys: &[&str]) {
    for key in keys {
        assert!(value[key].is_number(), "{key} is no number in {value:#}");
    }
}

/// Each of the keys is there with a text.
pub(crate) fn assert_texts(value: &Value, keys: &[&str]) {
    for key in keys {
        assert!(value[key].is_string(), "{key} is no text in {value:#}");
    }
}
