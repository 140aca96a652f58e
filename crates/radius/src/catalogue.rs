//! All known protocols and places.

use std::time::Duration;

use crate::{DataError, Place, Protocol, file};

/// The data file that comes with the program.
const EMBEDDED: &str = include_str!("../../../data/protocol-timers.toml");

/// The protocols with their timers, and the places with their distances.
#[derive(Debug, Clone, PartialEq)]
pub struct Catalogue {
    protocols: Vec<Protocol>,
    places: Vec<Place>,
}

impl Catalogue {
    /// The catalogue that comes with the program.
    pub fn embedded() -> Self {
        EMBEDDED.parse().expect("a test reads it")
    }

    /// The protocols, in the order of the file: each behind the one that it runs over.
    pub fn protocols(&self) -> &[Protocol] {
        &self.protocols
    }

    /// The places, the nearest first.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The protocol of that name.
    pub fn protocol(&self, name: &str) -> Option<&Protocol> {
        self.protocols.iter().find(|protocol| protocol.name == name)
    }

    /// The protocol and those that it runs over, from the top down.
    pub(crate) fn stack<'a>(&'a self, protocol: &'a Protocol) -> impl Iterator<Item = &'a Protocol> {
        std::iter::successors(Some(protocol), |above| self.protocol(above.over.as_deref()?))
    }

    /// The places within a radius; all of them without one.
    pub fn places_within(&self, radius: Option<Duration>) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(move |place| radius.is_none_or(|radius| place.delay <= radius))
    }
}

impl std::str::FromStr for Catalogue {
    type Err = DataError;

    /// Reads a data file; `data/protocol-timers.toml` describes its format.
    fn from_str(text: &str) -> Result<Self, DataError> {
        let (protocols, mut places) = file::parse(text)?;
        places.sort_by_key(|place| place.delay);
        Ok(Self { protocols, places })
    }
}
