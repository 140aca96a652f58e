//! The limit on open descriptors (getrlimit(2), `RLIMIT_NOFILE`).

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many descriptors this process may have open at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The limit in force; `u64::MAX` where there is none.
    pub soft: u64,
    /// What the process may raise it to; only root raises this one. `u64::MAX` where there is none.
    pub hard: u64,
}

/// The limit now.
pub fn descriptor_limit() -> Limit {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    Limit { soft: current.unwrap_or(u64::MAX), hard: maximum.unwrap_or(u64::MAX) }
}

/// Raises the soft limit to the hard one, which needs no privileges, and returns the limit as it is then.
///
/// The soft limit is low by default, 1024, for the sake of select(2), whose sets hold no more; neither this
/// program nor the tools that it starts use it with more. A flow takes two descriptors and, while bytes wait,
/// a pipe's two.
///
/// # Errors
/// The kernel refuses where the hard limit is above `fs.nr_open`, which an administrator may have lowered
/// since.
pub fn raise_descriptor_limit() -> io::Result<Limit> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(descriptor_limit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_soft_limit_is_raised_to_the_hard_one() {
        let before = descriptor_limit();
        let lower = Rlimit { current: Some(before.hard / 2), maximum: Some(before.hard) };
        setrlimit(Resource::Nofile, lower).unwrap();
        let raised = raise_descriptor_limit().unwrap();
        assert_eq!(raised, Limit { soft: before.hard, hard: before.hard });
    }
}
