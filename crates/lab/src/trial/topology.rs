//! The hosts of a trial with their daemons, whichever scene they are of.

use std::net::{IpAddr, SocketAddr};

use bentpipe_link::agent::xcp::XcpConfig;
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::explicit::LinkEstimate;
use bentpipe_proxy::{Config, Daemon};
use bentpipe_testbed::{Namespace, SatelliteLink};

use super::{PORT, Trial};
use crate::Error;
use crate::scene::{Scene, TwoBoxes};

/// What all scenes have in common.
pub(super) struct TrialTopology {
    pub link: SatelliteLink,
    pub client: Namespace,
    pub server: Namespace,
    pub gateway: Namespace,
    /// The server's.
    pub address: SocketAddr,
    /// The gateway's end of the satellite link.
    pub gateway_address: IpAddr,
    /// The gateway's first, if it has a daemon.
    pub boxes: Vec<Box>,
}

/// A host with a daemon.
pub(super) struct Box {
    pub host: Namespace,
    pub daemon: Option<Daemon>,
}

impl TrialTopology {
    /// Builds the trial's scene and starts its daemons.
    pub(super) fn build(trial: &Trial) -> Result<Self, Error> {
        let stations = [station(trial.station), LinkEndConfig::default()];
        let gateway = trial.proxy(&trial.congestion);
        let Some(terminal) = &trial.terminal else {
            let scene = Scene::build_with_stations(&trial.link(), &stations, trial.seed)?;
            let address = scene.server_address(PORT);
            let gateway_address = scene.gateway_address();
            let boxes: Result<_, Error> =
                trial.split.then(|| Box::start(scene.gateway.clone(), &gateway)).into_iter().collect();
            let Scene { link, client, gateway, server } = scene;
            return Ok(Self { link, client, server, gateway, address, gateway_address, boxes: boxes? });
        };
        let scene = TwoBoxes::build(&trial.link(), &stations, trial.seed)?;
        let address = scene.server_address(PORT);
        let terminal = trial.proxy(terminal);
        let gateway_address = scene.gateway_address();
        let boxes =
            vec![Box::start(scene.gateway.clone(), &gateway)?, Box::start(scene.terminal, &terminal)?];
        let TwoBoxes { link, client, gateway, server, .. } = scene;
        Ok(Self { link, client, server, gateway, address, gateway_address, boxes })
    }

    /// What the gateway's daemon knows of the link, if there is one.
    pub(super) fn standings(&self) -> Vec<(String, LinkEstimate)> {
        let daemon = self.boxes.first().and_then(|gateway| gateway.daemon.as_ref());
        daemon.map(Daemon::standings).unwrap_or_default()
    }

    /// The established connections of the gateway as ss(8) shows them, for who looks for what bounds them.
    pub(super) fn connections(&self) -> String {
        let listed = self.gateway.command("ss").args(["-Htin", "state", "established"]).output();
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

fn station(router: Option<XcpConfig>) -> LinkEndConfig {
    LinkEndConfig { agents: router.into_iter().map(AgentConfig::Xcp).collect(), arq: None }
}
