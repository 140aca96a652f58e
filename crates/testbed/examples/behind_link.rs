//! Runs a command behind a geostationary link: `behind_link [--far 'SERVER'] COMMAND…`

use std::ffi::OsString;
use std::process::ExitCode;

use bentpipe_link::Profile;
use bentpipe_testbed::BehindLink;

fn main() -> ExitCode {
    let mut command: Vec<OsString> = std::env::args_os().skip(1).collect();
    let far = if command.first().is_some_and(|word| word == "--far") {
        command.drain(..2).next_back().and_then(|line| line.into_string().ok())
    } else {
        None
    };
    let config = Profile::Geo.config();
    match (BehindLink { config, seed: 1, far, command, ..BehindLink::default() }).run() {
        Ok(code) => ExitCode::from(code as u8),
        Err(error) => {
            eprintln!("behind_link: {error}");
            ExitCode::FAILURE
        }
    }
}
