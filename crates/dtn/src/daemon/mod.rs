//! A node as a process: it prepares sockets while it has privileges, then starts all tasks, and stops them
//! again.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener as StdListener, UdpSocket};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bentpipe_kernel::privileges::Account;
use bentpipe_legs::{Legs, RateController, Senders};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::app;
use crate::config::{IngressSettings, Listen, NodeConfig, OtherName};
use crate::node::{Node, NodeError, Policies, clock};
use crate::store::{Store, StoreConfig};
use crate::tcpcl::identity::{self, Identity, IdentityError};
use crate::tcpcl::{Authority, Member, TlsConfig};
use crate::transfer;

mod datagrams;
mod ltp;
mod metrics;
mod reload;
mod sessions;
mod sockets;
mod udp;

pub use reload::{ReloadError, Reloader};

use metrics::MetricsListener;
use sessions::{SessionContext, find_leg};

/// How long a stopping node waits for its sessions to finish their transfers.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A node for which everything is done that needs privileges.
#[derive(Debug)]
pub struct Prepared {
    config: NodeConfig,
    /// Where the configuration is, if it can be read again.
    file: Option<PathBuf>,
    legs: Arc<Legs>,
    listeners: Vec<(StdListener, Option<String>)>,
    /// Of the HTTP inlets, in the order of the configuration.
    http_listeners: Vec<StdListener>,
    ltp: Option<UdpSocket>,
    ltp_keys: ltp::Keys,
    udp: Option<UdpSocket>,
    applications: StdUnixListener,
    metrics: Option<MetricsListener>,
    tls: Option<Arc<TlsConfig>>,
    policies: Policies,
}

/// A running node. Dropping it ends it at once, as if it were killed; [`stop`](Self::stop) lets sessions
/// finish.
#[derive(Debug)]
pub struct Running {
    node: Node,
    reloader: Reloader,
    addresses: Vec<SocketAddr>,
    http_addresses: Vec<SocketAddr>,
    ltp_address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    sessions: JoinSet<()>,
    services: JoinSet<()>,
    socket: PathBuf,
    _rate_controller: Option<RateController>,
}

impl Prepared {
    /// Prepares the legs, reads the keys and the contact plan, binds the ports, and makes the folders, which belong to `account`
    /// if one is given.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(mut config: NodeConfig, account: Option<&Account>) -> Result<Self, NodeError> {
        for warning in config.read_contact_plan(clock())? {
            tracing::warn!("{warning}");
        }
        let legs = Arc::new(Legs::prepare(&config.legs, &config.terrestrial));
        let tls = load_tls(&config)?;
        let policies = Policies::load(&config.security)?;
        let ltp_keys = ltp::Keys::load(&config)?;
        sockets::make_folder(&config.node.store, account)?;
        if let Some(folder) = config.node.socket.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            sockets::make_folder(folder, account)?;
        }
        let bind = |Listen { address, leg }: &Listen| {
            let listener = sockets::bind(*address, find_leg(&legs, leg.as_deref()))
                .map_err(NodeError::system(format!("listen at {address}")))?;
            Ok((listener, leg.clone()))
        };
        let listeners = config.listen.iter().map(bind).collect::<Result<_, NodeError>>()?;
        let http_addresses = config.inlets.iter().flat_map(|ingress| match ingress {
            IngressSettings::Http { address, .. } => address.as_slice(),
            IngressSettings::Folder { .. } => &[],
        });
        let bind = |address: &SocketAddr| {
            sockets::bind_transparent(*address)
                .map_err(NodeError::system(format!("listen for HTTP PUTs at {address}")))
        };
        let http_listeners = http_addresses.map(bind).collect::<Result<_, NodeError>>()?;
        let ltp = config.ltp.as_ref().map(|settings| ltp::bind(settings.address)).transpose()?;
        let udp = config.udp.as_ref().map(|settings| udp::bind(settings.address)).transpose()?;
        let metrics = MetricsListener::bind(&config.node)?;
        let applications = sockets::bind_unix(&config.node.socket, account)?;
        Ok(Self {
            config,
            file: None,
            legs,
            listeners,
            http_listeners,
            ltp,
            ltp_keys,
            udp,
            applications,
            metrics,
            tls,
            policies,
        })
    }

    /// The same for a configuration that can be read again from this file.
    #[must_use]
    pub fn reloads_from(self, file: impl Into<PathBuf>) -> Self {
        Self { file: Some(file.into()), ..self }
    }

    /// Opens the store and starts to listen, to connect and to serve applications. Call it within a runtime
    /// with several threads.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn start(self) -> Result<Running, NodeError> {
        let Self {
            config,
            file,
            legs,
            listeners,
            http_listeners,
            ltp,
            ltp_keys,
            udp,
            applications,
            metrics,
            tls,
            policies,
        } = self;
        let senders = Senders::default();
        let rate_controller = legs.share(senders.clone())?;
        let (store, records) = Store::open(StoreConfig {
            folder: config.node.store.clone(),
            quota: config.node.quota,
            max_bundles: config.node.max_bundles,
            keep_free: config.node.keep_free,
        })?;
        if !records.is_empty() {
            tracing::info!("{} bundles in the store", records.len());
        }
        let node = Node::new(&config, policies, store, records)?;
        let (stop, stopped) = watch::channel(false);
        let context = SessionContext { node: node.clone(), legs, tls, stop: stopped };
        let mut services = JoinSet::new();
        let mut sessions = JoinSet::new();
        let mut addresses = Vec::new();
        for (listener, leg) in listeners {
            let listener = TcpListener::from_std(listener).map_err(NodeError::system("listen".into()))?;
            let address = listener.local_addr().map_err(NodeError::system("listen".into()))?;
            tracing::info!("listening at {address}");
            addresses.push(address);
            sessions.spawn(context.clone().listen(listener, leg));
        }
        let applications = UnixListener::from_std(applications)
            .map_err(NodeError::system("listen for applications".into()))?;
        let reloader = Reloader::new(node.clone(), file, config.clone());
        services.spawn(serve_applications(node.clone(), reloader.clone(), applications));
        let metrics_address = metrics.as_ref().and_then(|metrics| metrics.address().ok());
        if let Some(metrics) = metrics {
            services.spawn(metrics.serve(node.clone(), context.stop.clone()));
        }
        let http_addresses = http_listeners.iter().map(StdListener::local_addr).collect::<Result<_, _>>();
        let http_addresses = http_addresses.map_err(NodeError::system("listen for HTTP PUTs".into()))?;
        transfer::start(&node, &config, http_listeners, &mut services).await?;
        services.spawn(node.clone().run_janitor());
        let echo = node.echo_endpoint(config.node.echo.as_deref());
        let echo = echo.map_err(|error| NodeError::Service(format!("node.echo: {error}")))?;
        // An outlet of the same name is what the operator wants.
        if let Some(endpoint) = echo.filter(|echo| !config.has_outlet(&echo.service().unwrap_or_default())) {
            services.spawn(node.clone().run_echo(endpoint));
        }
        let start_ltp = |socket| {
            let ends = (socket, &ltp_keys);
            ltp::start(&node, &config, &context.legs, &senders, ends, &context.stop, &mut sessions)
        };
        let ltp_address = ltp.map(start_ltp).transpose()?;
        if let Some(socket) = udp {
            udp::start(&node, &config, socket, &context.stop, &mut sessions)?;
        }
        for peer in node.peers() {
            sessions.spawn(context.clone().connect(peer.settings.id.clone()));
        }
        Ok(Running {
            node,
            reloader,
            addresses,
            http_addresses,
            ltp_address,
            metrics_address,
            stop,
            sessions,
            services,
            socket: config.node.socket,
            _rate_controller: rate_controller,
        })
    }
}

impl Running {
    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Reads its configuration again.
    pub fn reloader(&self) -> &Reloader {
        &self.reloader
    }

    /// The addresses of its TCPCL listeners, in the order of the configuration.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The addresses where it accepts HTTP PUTs, in the order of the configuration.
    pub fn http_addresses(&self) -> &[SocketAddr] {
        &self.http_addresses
    }

    /// The address of its LTP engine.
    pub fn ltp_address(&self) -> Option<SocketAddr> {
        self.ltp_address
    }

    /// The address where the metrics are, if there is one.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Gives sessions a moment to finish their transfers, and stops the node.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        let all = async { while self.sessions.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(STOP_TIMEOUT, all).await;
        self.sessions.shutdown().await;
        self.services.shutdown().await;
        let node = self.node.clone();
        let _ = tokio::task::spawn_blocking(move || node.tidy(false)).await;
        // A socket without a listener would mislead clients.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Serves applications until the task is cancelled.
async fn serve_applications(node: Node, reloader: Reloader, listener: UnixListener) {
    let reload = Arc::new(move || reloader.reload().map_err(|error| error.to_string()));
    let router = app::router(node).merge(app::reload_router(reload));
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!("the interface for applications has stopped: {error}");
    }
}

fn load_tls(config: &NodeConfig) -> Result<Option<Arc<TlsConfig>>, IdentityError> {
    let (Some(certificate), Some(key)) = (&config.node.certificate, &config.node.key) else {
        return Ok(None);
    };
    let identity = Identity::load(certificate, key)?;
    let mut pinned = Vec::new();
    for peer in &config.peers {
        if let Some(certificate) = &peer.certificate {
            pinned.push((peer.id.clone(), identity::load_certificate(certificate)?));
        }
    }
    let mut members: BTreeMap<&Path, Vec<Member>> = BTreeMap::new();
    for peer in &config.peers {
        let host = peer.address.as_ref().and_then(|address| address.host());
        let host = host.filter(|_| peer.may_be_named_by(OtherName::Dns)).map(str::to_owned);
        let by_uri = peer.may_be_named_by(OtherName::Uri);
        if let Some(authority) = &peer.authority {
            members.entry(authority).or_default().push(Member { id: peer.id.clone(), by_uri, host });
        }
    }
    let authorities = members.into_iter().map(|(path, members)| Authority::load(path, members));
    let authorities = authorities.collect::<Result<_, _>>()?;
    Ok(Some(Arc::new(TlsConfig::with_authorities(identity, pinned, authorities)?)))
}
