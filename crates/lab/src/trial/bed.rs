//! The hosts of a trial with their daemons, whichever scene they are of.

use std::net::SocketAddr;

use bentpipe_link::agent::xcp::XcpConfig;
use bentpipe_link::agent::{AgentConfig, StationConfig};
use bentpipe_proxy::{Config, Daemon};
use bentpipe_testbed::{Namespace, SatelliteLink};

use super::{PORT, Trial};
use crate::Error;
use crate::scene::{Scene, TwoBoxes};

/// What all scenes have in common.
pub(super) struct Bed {
    pub link: SatelliteLink,
    pub client: Namespace,
    pub server: Namespace,
    pub address: SocketAddr,
    /// The gateway's first.
    pub boxes: Vec<Box>,
}

/// A host with a daemon.
pub(super) struct Box {
    pub host: Namespace,
    pub daemon: Option<Daemon>,
}

impl Bed {
    /// Builds the trial's scene and starts its daemons.
    pub(super) fn build(trial: &Trial) -> Result<Self, Error> {
        let stations = [station(trial.station), StationConfig::default()];
        let gateway = trial.proxy(&trial.congestion);
        let Some(terminal) = &trial.terminal else {
            let scene = Scene::build_with_stations(&trial.link(), &stations, trial.seed)?;
            let address = scene.server_address(PORT);
            let boxes = vec![Box::start(scene.gateway, &gateway)?];
            return Ok(Self { link: scene.link, client: scene.client, server: scene.server, address, boxes });
        };
        let scene = TwoBoxes::build(&trial.link(), &stations, trial.seed)?;
        let address = scene.server_address(PORT);
        let terminal = trial.proxy(terminal);
        let boxes = vec![Box::start(scene.gateway, &gateway)?, Box::start(scene.terminal, &terminal)?];
        Ok(Self { link: scene.link, client: scene.client, server: scene.server, address, boxes })
    }

    /// The gateway's daemon.
    pub(super) fn gateway(&self) -> &Daemon {
        self.boxes[0].daemon.as_ref().expect("it runs until it is dropped")
    }

    /// The established connections of the gateway as ss(8) shows them, for who looks for what bounds them.
    pub(super) fn connections(&self) -> String {
        let listed = self.boxes[0].host.command("ss").args(["-Htin", "state", "established"]).output();
        listed.map_or_else(|error| error.to_string(), |out| String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

impl Box {
    fn start(host: Namespace, config: &Config) -> Result<Self, Error> {
        let daemon = host.run(|| Daemon::start(config))?;
        let daemon = Some(daemon.map_err(|error| Error::Proxy(error.to_string()))?);
        Ok(Self { host, daemon })
    }
}

impl Drop for Box {
    /// In its own namespace, whose rules it removes.
    fn drop(&mut self) {
        let daemon = self.daemon.take();
        // The namespace goes too, and with it whatever is left.
        let _ = self.host.run(|| drop(daemon));
    }
}

fn station(router: Option<XcpConfig>) -> StationConfig {
    StationConfig { agents: router.into_iter().map(AgentConfig::Xcp).collect(), arq: None }
}
