//! The user's shell, and a prompt that says that it is behind a link.

use std::env;
use std::ffi::OsString;
use std::process::Command;

use rustix::process::geteuid;

/// The labels of all links around a shell, for a prompt.
const PROMPT: &str = "BENTPIPE_PROMPT";

/// `$SHELL`, as a terminal starts it.
pub(super) fn program() -> OsString {
    env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into())
}

/// Puts `[label]` behind the labels of the links outside, and all of them in front of the prompts of shells
/// that the command is or starts: by the prompt itself, and for Bash, whose start-up files set it, by what it
/// runs before the first one. Other shells can use the variable in their start-up files.
pub(super) fn prompt(command: &mut Command, label: &str) {
    let prompt = join(env::var(PROMPT).ok().as_deref(), label);
    let sign = if geteuid().is_root() { '#' } else { '$' };
    command
        .env("PS1", format!("{prompt}{sign} "))
        .env("PROMPT_COMMAND", "PS1=\"$BENTPIPE_PROMPT${PS1#\"$BENTPIPE_PROMPT\"}\"; unset PROMPT_COMMAND")
        .env(PROMPT, prompt);
}

fn join(outer: Option<&str>, label: &str) -> String {
    format!("{}[{label}] ", outer.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stand_from_the_outermost_link_to_the_innermost() {
        assert_eq!(join(None, "link 300ms"), "[link 300ms] ");
        assert_eq!(join(Some("[link 300ms] "), "link per 1%"), "[link 300ms] [link per 1%] ");
    }
}
