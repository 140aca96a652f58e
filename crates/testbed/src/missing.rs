use std::fmt;

/// Something that the testbed may need from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// CAP_SYS_ADMIN and CAP_NET_ADMIN now, as root has them.
    Privileges,
    /// Network namespaces by any means: with the privileges above, or in a user namespace.
    Namespaces,
    /// A `/dev/net/tun` that this user may open.
    Tun,
    /// A program, by name, such as `ip` or `nft`.
    Program(&'static str),
}

/// The needs that the machine does not meet, one line each, with the line that fixes it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Missing {
    /// The items, in the order of the request.
    pub items: Vec<MissingItem>,
}

/// A need that the machine does not meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingItem {
    /// The need.
    pub need: Need,
    /// The state of the machine instead.
    pub found: String,
    /// The remedy.
    pub fix: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this machine lacks something that the testbed needs")?;
        for item in &self.items {
            write!(f, "\n  {}; to fix it: {}", item.found, item.fix)?;
        }
        Ok(())
    }
}
