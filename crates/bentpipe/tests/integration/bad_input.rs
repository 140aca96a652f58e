//! Bad input is one clear line on standard error, exit code 1, and nothing left behind. No test here needs
//! root.

use std::io::Write;
use std::process::{Command, Output};

fn bentpipe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bentpipe")).args(arguments).output().unwrap()
}

fn run_with(configuration: &str) -> Output {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    file.write_all(configuration.as_bytes()).unwrap();
    bentpipe(&["run", "-c", file.path().to_str().unwrap()])
}

/// The one line on standard error; panics if there is another, or if the exit code is not 1.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(output.stdout.is_empty());
    text
}

#[test]
fn a_missing_configuration_is_named() {
    let text = complaint(&bentpipe(&["run", "-c", "/no/such/bentpipe.toml"]));
    assert!(text.contains("/no/such/bentpipe.toml"), "{text}");
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_accepted_ones() {
    let text = complaint(&run_with("[legs.sat]\ninterface = \"sat0\"\nspeed = 3\n"));
    for part in [".toml:3: ", "legs.sat.speed", "congestion", "restart_within"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn an_unknown_unit_is_named_with_an_example() {
    let text = complaint(&run_with("[legs.sat]\ninterface = \"sat0\"\nrate = \"10Mb\"\n"));
    for part in [".toml:3: ", "legs.sat.rate", "10Mb", "10Mbit/s"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn a_configuration_without_a_leg_says_how_to_add_one() {
    let text = complaint(&run_with("[proxy]\nport = 7600\n"));
    assert!(text.contains("[legs."), "{text}");
}

#[test]
fn an_unusable_outage_trace_names_file_and_line() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"start_s,duration_s\n1,2\nx,3\n").unwrap();
    let argument = file.path().to_str().unwrap();
    let text = complaint(&bentpipe(&["link", "--outages", argument, "--", "true"]));
    assert!(text.contains(argument) && text.contains("line 3"), "{text}");
}

#[test]
fn keys_that_an_agent_does_not_have_are_named_with_those_it_has() {
    for (argument, parts) in [
        ("--snoop=fast", ["\"fast\"", "3BDP"]),
        ("--snoop=0", ["one segment", "1.5kB"]),
        ("--snoop-pace=fast", ["10Mbit/s", ", or off"]),
        ("--delayed-dup-acks=5", ["the unit is missing", "600ms"]),
        ("--arq=0", ["--arq", "1 to 1000"]),
    ] {
        let output = bentpipe(&["link", argument, "--", "true"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{argument}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{argument}: {text}");
    }
}

#[test]
fn a_cache_in_bandwidth_delay_products_needs_a_link_that_has_one() {
    let text = complaint(&bentpipe(&["link", "--delay", "300ms", "--snoop", "--", "true"]));
    for part in ["--rate", "--profile", "--snoop=2MB"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}
