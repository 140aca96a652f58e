//! The hosts of a trial with their daemons: a proxy at the gateway at most, or one at each side of the satellite.

use std::net::{IpAddr, SocketAddr};

use bentpipe_link::agent::xcp::XcpConfig;
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::explicit::LinkEstimate;
use bentpipe_proxy::{Config, Daemon};
use bentpipe_testbed::{Namespace, SatelliteLink};

use super::{PORT, Trial};
use crate::Error;
use crate::topology::{Topology, TwoProxies};

/// The hosts that every trial has, and its daemons.
pub(super) struct TrialTopology {
    pub link: SatelliteLink,
    pub client: Namespace,
    pub server: Namespace,
    pub gateway: Namespace,
    /// The server's address.
    pub address: SocketAddr,
    /// The gateway's end of the satellite link.
    pub gateway_address: IpAddr,
    /// The gateway's daemon comes first, if there is one.
    pub proxies: Vec<ProxyHost>,
}

/// A host with a daemon.
pub(super) struct ProxyHost {
    host: Namespace,
    daemon: Option<Daemon>,
}

impl TrialTopology {
    /// Builds the trial's hosts and starts their daemons.
    pub(super) fn build(trial: &Trial) -> Result<Self, Error> {
        let ends = [xcp_router(trial.station), LinkEndConfig::default()];
        let config = trial.proxy(&trial.congestion);
        let Some(terminal) = &trial.terminal else {
            let topology = Topology::build_with_stations(&trial.link(), &ends, trial.seed)?;
            let (address, gateway_address) = (topology.server_address(PORT), topology.gateway_address());
            let Topology { link, client, gateway, server } = topology;
            let proxies = match trial.split {
                true => vec![ProxyHost::start(gateway.clone(), &config)?],
                false => Vec::new(),
            };
            return Ok(Self { link, client, server, gateway, address, gateway_address, proxies });
        };
        let topology = TwoProxies::build(&trial.link(), &ends, trial.seed)?;
        let (address, gateway_address) = (topology.server_address(PORT), topology.gateway_address());
        let TwoProxies { link, client, gateway, terminal: terminal_host, server } = topology;
        let proxies = vec![
            ProxyHost::start(gateway.clone(), &config)?,
            ProxyHost::start(terminal_host, &trial.proxy(terminal))?,
        ];
        Ok(Self { link, client, server, gateway, address, gateway_address, proxies })
    }

    /// The estimates of the links that the gateway's daemon has, if there is one.
    pub(super) fn link_estimates(&self) -> Vec<(String, LinkEstimate)> {
        let daemon = self.proxies.first().and_then(|gateway| gateway.daemon.as_ref());
        daemon.map(Daemon::link_estimates).unwrap_or_default()
    }

    /// The established connections of the gateway as ss(8) shows them.
    pub(super) fn connections(&self) -> String {
        let listed = self.gateway.command("ss").args(["-Htin", "state", "established"]).output();
        listed.map_or_else(|error| error.to_string(), |out| String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

impl ProxyHost {
    fn start(host: Namespace, config: &Config) -> Result<Self, Error> {
        let daemon = host.run(|| Daemon::start(config))?;
        let daemon = Some(daemon.map_err(|error| Error::Proxy(error.to_string()))?);
        Ok(Self { host, daemon })
    }
}

impl Drop for ProxyHost {
    /// Drops the daemon in its own namespace, because it removes its rules there.
    fn drop(&mut self) {
        let daemon = self.daemon.take();
        // On an error nothing is left behind either, because the namespace is removed with everything in it.
        let _ = self.host.run(|| drop(daemon));
    }
}

fn xcp_router(router: Option<XcpConfig>) -> LinkEndConfig {
    LinkEndConfig { agents: router.into_iter().map(AgentConfig::Xcp).collect(), arq: None }
}
