//! A congestion control from outside of this crate, for experiments.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{CongestionControl, Parameters};

/// The longest name, bytes.
const MAX_NAME: usize = 32;

/// The name of a congestion control from outside: 1 to 32 letters, digits, `-` and `_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CustomName {
    bytes: [u8; MAX_NAME],
    length: u8,
}

impl CustomName {
    /// What stands before it where it is the name of an algorithm.
    pub const PREFIX: &'static str = "custom:";

    /// The name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("a name is ASCII")
    }
}

impl FromStr for CustomName {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(allowed) {
            return Err(());
        }
        let mut bytes = [0; MAX_NAME];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self { bytes, length: name.len() as u8 })
    }
}

/// Makes a controller for each connection of an endpoint.
#[derive(Clone)]
pub struct ControlFactory(Arc<dyn Fn(Parameters) -> Box<dyn CongestionControl> + Send + Sync>);

impl ControlFactory {
    /// One that calls `make`.
    pub fn new(make: impl Fn(Parameters) -> Box<dyn CongestionControl> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// A controller for a new connection.
    pub fn build(&self, parameters: Parameters) -> Box<dyn CongestionControl> {
        (self.0)(parameters)
    }
}

impl fmt::Debug for ControlFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlFactory")
    }
}
