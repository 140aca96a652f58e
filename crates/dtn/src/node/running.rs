//! From a configuration to a node at work, and back.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bentpipe_kernel::Weight;
use bentpipe_kernel::leg::Leg;
use bentpipe_kernel::privileges::Account;
use bentpipe_kernel::sockopt;
use bentpipe_legs::{Legs, RateController, RateControllerError};
use bentpipe_units::ByteCount;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::app;
use crate::config::{ConfigError, NodeConfig, PeerSettings};
use crate::store::{Store, StoreConfig, StoreError};
use crate::tcpcl::identity::{self, Identity, IdentityError};
use crate::tcpcl::{self, PeerOverride, Role, SessionEnd, SessionSettings, Tls, TlsConfig};
use crate::transfer::{self, InletSettings};

use super::Node;
use super::host::Visit;
use super::peers::Peer;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// The first wait after a connection has failed; it doubles up to the peer's `retry_within`.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// How long an attempt to connect may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);
/// How long the listener waits when the process has no descriptor left.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);
/// How long sessions may take to finish what they have begun when the node ends.
const END_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether there is a reason to connect.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often something is heard of an idle peer.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Why a node could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration says what cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Certificates or keys cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Rates cannot be shared out.
    #[error(transparent)]
    RateController(#[from] RateControllerError),
    /// The system refused something.
    #[error("cannot {action}: {source}")]
    System {
        /// What was attempted.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// An outlet's service is none that this node can have.
    #[error("an outlet: {reason}")]
    Outlet {
        /// Why.
        reason: String,
    },
    /// Another node has the socket.
    #[error("another node answers at {socket}; give each node its own node.socket")]
    SocketTaken {
        /// The socket.
        socket: PathBuf,
    },
}

/// A node for which everything is done that needs privileges.
#[derive(Debug)]
pub struct Prepared {
    config: NodeConfig,
    legs: Arc<Legs>,
    listeners: Vec<(StdListener, Option<String>)>,
    /// Of the HTTP inlets, in the order of the configuration.
    inlets: Vec<StdListener>,
    applications: StdUnixListener,
    tls: Option<Arc<TlsConfig>>,
}

/// A node at work. Dropped, it ends at once, as if it had been killed: [`stop`](Self::stop) is politer.
#[derive(Debug)]
pub struct Running {
    node: Node,
    addresses: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    sessions: JoinSet<()>,
    services: JoinSet<()>,
    socket: PathBuf,
    _sharing: Option<RateController>,
}

/// What every session needs.
#[derive(Clone)]
struct Office {
    node: Node,
    legs: Arc<Legs>,
    tls: Option<Arc<TlsConfig>>,
    stop: watch::Receiver<bool>,
}

impl Prepared {
    /// Loads what the legs need, reads the keys, binds the ports, and makes the folders, which belong to `account` if one is
    /// given.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn new(config: NodeConfig, account: Option<&Account>) -> Result<Self, NodeError> {
        let legs = Arc::new(Legs::prepare(&config.legs, &config.terrestrial));
        let tls = tls(&config)?;
        make_folder(&config.node.store, account)?;
        if let Some(folder) = config.node.socket.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            make_folder(folder, account)?;
        }
        let listener = |listen: &crate::config::Listen| {
            let leg = leg(&legs, listen.leg.as_deref());
            let listener = bind(listen.address, leg)
                .map_err(NodeError::system(format!("listen at {}", listen.address)))?;
            Ok((listener, listen.leg.clone()))
        };
        let listeners = config.listen.iter().map(listener).collect::<Result<_, NodeError>>()?;
        let addresses = config.inlets.iter().flat_map(|inlet| match inlet {
            InletSettings::Http { address, .. } => address.as_slice(),
            InletSettings::Folder { .. } => &[],
        });
        let inlet = |address: &SocketAddr| {
            bind_transparent(*address)
                .map_err(NodeError::system(format!("listen for HTTP PUTs at {address}")))
        };
        let inlets = addresses.map(inlet).collect::<Result<_, NodeError>>()?;
        let applications = bind_unix(&config.node.socket, account)?;
        Ok(Self { config, legs, listeners, inlets, applications, tls })
    }

    /// Opens the store, and begins to listen, to connect and to serve applications. Has to be called within a runtime of several
    /// threads.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn start(self) -> Result<Running, NodeError> {
        let Self { config, legs, listeners, inlets, applications, tls } = self;
        let sharing = legs.share()?;
        let store = StoreConfig {
            folder: config.node.store.clone(),
            quota: config.node.quota,
            max_bundles: config.node.max_bundles,
            keep_free: config.node.keep_free,
        };
        let (store, records) = Store::open(store)?;
        if !records.is_empty() {
            tracing::info!("{} bundles in the store", records.len());
        }
        let node = Node::new(&config, store, records);
        for peer in node.0.peers.values() {
            peer.require_proof(peer.settings.is_encrypted(config.node.certificate.is_some()));
        }
        let (stop, stopped) = watch::channel(false);
        let office = Office { node: node.clone(), legs, tls, stop: stopped };
        let mut services = JoinSet::new();
        let mut sessions = JoinSet::new();
        let mut addresses = Vec::new();
        for (listener, leg) in listeners {
            let listener = TcpListener::from_std(listener).map_err(NodeError::system("listen".into()))?;
            let address = listener.local_addr().map_err(NodeError::system("listen".into()))?;
            tracing::info!("listening at {address}");
            addresses.push(address);
            sessions.spawn(office.clone().listen(listener, leg));
        }
        let applications = UnixListener::from_std(applications)
            .map_err(NodeError::system("listen for applications".into()))?;
        services.spawn(serve(node.clone(), applications));
        let http = inlets.iter().map(StdListener::local_addr).collect::<Result<_, _>>();
        let http = http.map_err(NodeError::system("listen for HTTP PUTs".into()))?;
        transfer::start(&node, &config, inlets, &mut services).await?;
        services.spawn(node.clone().keep_house());
        for id in node.0.peers.keys() {
            sessions.spawn(office.clone().connect(id.clone()));
        }
        Ok(Running {
            node,
            addresses,
            http,
            stop,
            sessions,
            services,
            socket: config.node.socket,
            _sharing: sharing,
        })
    }
}

impl Running {
    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Where it listens, in the order of the configuration.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where it takes HTTP PUTs, in the order of the configuration.
    pub fn http_addresses(&self) -> &[SocketAddr] {
        &self.http
    }

    /// Lets sessions finish what they have begun, for a moment, and ends.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        let all = async { while self.sessions.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(END_WITHIN, all).await;
        self.sessions.shutdown().await;
        self.services.shutdown().await;
        let node = self.node.clone();
        let _ = tokio::task::spawn_blocking(move || node.tidy(false)).await;
        // Who looks for the node shall not find a socket where nobody listens.
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Office {
    /// Accepts sessions of other nodes for ever.
    async fn listen(self, listener: TcpListener, leg: Option<String>) {
        let mut sessions = JoinSet::new();
        let mut stop = self.stop.clone();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = sessions.join_next(), if !sessions.is_empty() => continue,
                _ = stop.wait_for(|stopped| *stopped) => break,
            };
            match accepted {
                Ok((stream, address)) => {
                    sessions.spawn(self.clone().accepted(stream, address, leg.clone()));
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
                }
            }
        }
        while sessions.join_next().await.is_some() {}
    }

    async fn accepted(self, stream: TcpStream, address: SocketAddr, leg: Option<String>) {
        let settings = self.settings(None, leg.as_deref());
        let visit = Arc::new(Visit::new(self.node.clone(), address));
        let end = tcpcl::run(stream, Role::Passive, settings, visit, self.stop).await;
        if let Some(peer) = end.peer.as_ref().and_then(|peer| self.node.0.peers.get(peer)) {
            peer.has_trouble(&end.reason);
        }
        log(&format!("the session with {}", name(&end, address)), &end);
    }

    /// Keeps a session with a peer, if its address is known and as far as the contact plan allows.
    async fn connect(self, id: crate::Eid) {
        let node = self.node.clone();
        let Some(peer) = node.0.peers.get(&id) else { return };
        let Some(address) = peer.settings.address else { return };
        let mut stop = self.stop.clone();
        let mut wait = FIRST_WAIT;
        loop {
            let attempt = async {
                while peer.is_connected() || !node.agenda().is_open(&id, super::clock()) {
                    let _ = tokio::time::timeout(LOOK_EVERY, peer.dial.notified()).await;
                }
                self.dial(peer, address).await
            };
            let dialled = tokio::select! {
                dialled = attempt => dialled,
                _ = stop.wait_for(|stopped| *stopped) => return,
            };
            match dialled {
                Ok(stream) => {
                    let settings = self.settings(Some(peer), peer.settings.leg.as_deref());
                    let visit = Arc::new(Visit::new(node.clone(), address));
                    let end =
                        tcpcl::run(stream, Role::Active, settings, visit.clone(), self.stop.clone()).await;
                    if visit.was_established() {
                        wait = FIRST_WAIT;
                    }
                    if peer.has_trouble(&end.reason) {
                        log(&format!("the session with {id} at {address}"), &end);
                    }
                }
                Err(error) => {
                    let text = format!("cannot connect: {error}");
                    if peer.has_trouble(&text) {
                        tracing::warn!("{id} at {address}: {text}; trying again for as long as it takes");
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // A contact has begun, or ended.
                () = peer.dial.notified() => wait = FIRST_WAIT,
                _ = stop.wait_for(|stopped| *stopped) => return,
            }
            wait = (wait * 2).min(peer.settings.retry_within.get());
        }
    }

    async fn dial(&self, peer: &Peer, address: SocketAddr) -> io::Result<TcpStream> {
        let socket =
            Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        leg(&self.legs, peer.settings.leg.as_deref())
            .apply_before_connect(socket.as_fd(), Weight::default())?;
        let connecting = TcpSocket::from_std_stream(socket.into()).connect(address);
        match tokio::time::timeout(CONNECT_WITHIN, connecting).await {
            Ok(connected) => connected,
            Err(_) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {CONNECT_WITHIN:?}")))
            }
        }
    }

    /// How a session is to be led, with the peer if it is known beforehand.
    fn settings(&self, peer: Option<&Peer>, leg_name: Option<&str>) -> SessionSettings {
        let survives = leg(&self.legs, leg_name).timers().user_timeout.unwrap_or_default();
        let chosen = peer.and_then(|peer| peer.settings.keepalive);
        // Of an outage TCP knows more than a clock does: it is up to the leg how long it is waited.
        let keepalive = chosen.map_or(KEEPALIVE.max(survives / 2), bentpipe_units::Span::get);
        let mut settings = SessionSettings::new(self.node.id().clone());
        settings.keepalive = keepalive;
        settings.tls = match (&self.tls, peer) {
            (Some(tls), Some(peer)) if peer.must_prove() => Tls::Require(tls.clone()),
            // Who connects is not known yet: it is admitted without TLS only if the configuration allows that.
            (Some(tls), None) => Tls::Offer(tls.clone()),
            _ => Tls::Off,
        };
        settings.expected_peer = peer.map(|peer| peer.settings.id.clone());
        let known = self.node.0.peers.iter().map(|(id, peer)| (id.clone(), overrides(&peer.settings)));
        settings.peers = known.collect();
        settings
    }
}

fn log(session: &str, end: &SessionEnd) {
    match end.in_order {
        true => tracing::info!("{session} has ended: {end}"),
        false => tracing::warn!("{session} has ended: {end}"),
    }
}

fn name(end: &SessionEnd, address: SocketAddr) -> String {
    end.peer.as_ref().map_or_else(|| address.to_string(), |peer| format!("{peer} at {address}"))
}

fn tls(config: &NodeConfig) -> Result<Option<Arc<TlsConfig>>, IdentityError> {
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
    Ok(Some(Arc::new(TlsConfig::new(identity, pinned)?)))
}

/// What is known of a peer better than by what it says.
fn overrides(settings: &PeerSettings) -> PeerOverride {
    PeerOverride {
        segment_mru: settings.segment_mru.map(ByteCount::get),
        transfer_mru: settings.transfer_mru.map(ByteCount::get),
        lenient: settings.lenient,
    }
}

fn leg<'a>(legs: &'a Legs, name: Option<&str>) -> &'a Leg {
    // The configuration has been checked: a leg that is named is there.
    name.and_then(|name| legs.leg(name)).unwrap_or_else(|| legs.terrestrial())
}

fn bind(address: SocketAddr, leg: &Leg) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // An IPv4 address has a line of its own.
        socket.set_only_v6(true)?;
    }
    // Before listen(2): what is accepted inherits them.
    leg.apply_weighted(socket.as_fd(), Weight::default())?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A listener that takes connections to other hosts, too, where privileges allow and a rule hands them over.
fn bind_transparent(address: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if let Err(error) = sockopt::set_transparent(&socket, &address) {
        tracing::warn!(
            "PUTs to {address} itself are taken, but not those that a rule hands over: cannot make it transparent: {error}"
        );
    }
    socket.bind(&address.into())?;
    socket.listen(transfer::BACKLOG)?;
    Ok(socket.into())
}

/// The socket for applications, which belongs to the account if one is given.
fn bind_unix(path: &Path, account: Option<&Account>) -> Result<StdUnixListener, NodeError> {
    let listener = match StdUnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // A process that was killed leaves its socket behind, and nobody answers there.
            if UnixStream::connect(path).is_ok() {
                return Err(NodeError::SocketTaken { socket: path.to_owned() });
            }
            std::fs::remove_file(path).and_then(|()| StdUnixListener::bind(path))
        }
        other => other,
    };
    let prepared = listener.and_then(|listener| {
        listener.set_nonblocking(true)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
        if let Some(account) = account {
            chown(path, Some(account.uid()), Some(account.gid()))?;
        }
        Ok(listener)
    });
    prepared.map_err(NodeError::system(format!("listen for applications at {}", path.display())))
}

/// Serves applications for ever.
async fn serve(node: Node, listener: UnixListener) {
    if let Err(error) = axum::serve(listener, app::router(node)).await {
        tracing::error!("applications are not served any more: {error}");
    }
}

/// Makes a folder that is the account's and nobody else's; one that is there stays as it is.
fn make_folder(path: &Path, account: Option<&Account>) -> Result<(), NodeError> {
    if path.is_dir() {
        return Ok(());
    }
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o750).create(path);
    let given = made.and_then(|()| match account {
        Some(account) => chown(path, Some(account.uid()), Some(account.gid())),
        None => Ok(()),
    });
    given.map_err(NodeError::system(format!("make the folder {}", path.display())))
}

impl NodeError {
    pub(crate) fn system(action: String) -> impl FnOnce(io::Error) -> Self {
        |source| Self::System { action, source }
    }
}
