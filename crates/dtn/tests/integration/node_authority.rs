//! Peers whose certificates an authority issues (RFC 9174 §4.4).

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, SanType, date_time_ymd,
};

use crate::node_common::*;

/// An authority, and the certificates that it issues.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Ca {
    fn new() -> Self {
        Self::called("root")
    }

    fn called(name: &str) -> Self {
        let (params, key) = (Self::params(name), KeyPair::generate().unwrap());
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    }

    /// An authority below this one.
    fn intermediate(&self) -> Self {
        let (params, key) = (Self::params("intermediate"), KeyPair::generate().unwrap());
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate and its key.
    fn issue(&self, params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join("ca.pem");
        std::fs::write(&path, &self.pem).unwrap();
        path
    }
}

/// A certificate that names a node by its bundle EID, 1.3.6.1.5.5.7.8.11.
fn for_node(id: &str) -> CertificateParams {
    let oid = [0x06, 8, 0x2B, 0x06, 0x01, 0x05, 0x05, 0x07, 0x08, 0x0B];
    let element = |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).unwrap()], content].concat();
    let value = element(0xA0, &element(0x16, id.as_bytes()));
    let names = element(0x30, &element(0xA0, &[&oid[..], &value].concat()));
    let mut params = CertificateParams::default();
    params.custom_extensions = vec![CustomExtension::from_oid_content(&[2, 5, 29, 17], names)];
    params
}

/// A certificate with other names.
fn named(names: Vec<SanType>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names;
    params
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

fn dns(text: &str) -> SanType {
    SanType::DnsName(text.try_into().unwrap())
}

/// Certificate and key as lines of `[node]`.
fn keyed(folder: &Path, (certificate, key): &(String, String)) -> String {
    let (certificate_path, key_path) = (folder.join("own.pem"), folder.join("own.key"));
    std::fs::write(&certificate_path, certificate).unwrap();
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&key_path).unwrap();
    std::io::Write::write_all(&mut file, key.as_bytes()).unwrap();
    format!("certificate = {certificate_path:?}\nkey = {key_path:?}\n")
}

/// Node `a`, which connects, and node `b`, which listens; each with its certificate and with lines for the other.
struct Two {
    a: TestNode,
    b: TestNode,
    _folders: [tempfile::TempDir; 2],
}

/// The address of `b`: as a name, or not.
#[derive(Clone, Copy)]
enum At {
    Address,
    Name,
}

impl Two {
    async fn start(ca: &Ca, of_a: &(String, String), of_b: &(String, String), at: At, b_at_a: &str) -> Self {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let authority = |folder: &Path| format!("authority = {:?}\n", ca.write(folder));
        let own = |folder: &Path, identity| format!("{}{}", keyed(folder, identity), authority(folder));
        let [first, second] = [&folders[0], &folders[1]].map(tempfile::TempDir::path);
        let b = TestNode::start_with("dtn://b/", &own(second, of_b), &peer("dtn://a/", None, "")).await;
        let port = b.address().port();
        let address = match at {
            At::Address => format!("127.0.0.1:{port}"),
            At::Name => format!("localhost:{port}"),
        };
        let of_peer = format!(
            "[[peers]]\nid = \"dtn://b/\"\naddress = \"{address}\"\nretry_within = \"500ms\"\n{b_at_a}"
        );
        let a = TestNode::start_with("dtn://a/", &own(first, of_a), &of_peer).await;
        Self { a, b, _folders: folders }
    }

    async fn exchange(&self) {
        let status = self.a.until(connected).await;
        assert!(status.peers[0].encrypted);
        self.a.send("dtn://b/x", bytes(1, 1000), &[]).await;
        assert_eq!(number(&self.b.receive("x").await), 1);
        self.b.send("dtn://a/x", bytes(2, 1000), &[]).await;
        assert_eq!(number(&self.a.receive("x").await), 2);
    }

    /// The error at `a`, which has no session.
    async fn fails(&self) -> String {
        let status = self.a.until(|status| status.peers[0].last_error.is_some()).await;
        assert_eq!(self.b.status().totals.sessions, 0);
        status.peers[0].last_error.clone().unwrap()
    }
}

/// RFC 9174 §4.4.4: A peer is authenticated by the bundle EID (NODE-ID) in a certificate of a trusted authority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_certificates_of_one_authority_trust_each_other() {
    let ca = Ca::new();
    let [of_a, of_b] = ["dtn://a/", "dtn://b/"].map(|id| ca.issue(&for_node(id)));
    Two::start(&ca, &of_a, &of_b, At::Address, "").await.exchange().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_may_lead_over_intermediate_certificates() {
    let ca = Ca::new();
    let below = ca.intermediate();
    let [of_a, of_b] = ["dtn://a/", "dtn://b/"].map(|id| {
        let (certificate, key) = below.issue(&for_node(id));
        (format!("{certificate}{}", below.pem), key)
    });
    Two::start(&ca, &of_a, &of_b, At::Address, "").await.exchange().await;
    // Without the certificate between.
    let of_b = below.issue(&for_node("dtn://b/"));
    let error = Two::start(&ca, &of_a, &of_b, At::Address, "").await.fails().await;
    assert!(error.contains("no configured authority"), "{error}");
}

/// RFC 9174 §4.4.4: A certificate whose bundle EID is another's proves nothing, whatever else it names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_node_is_refused() {
    let ca = Ca::new();
    let of_a = ca.issue(&for_node("dtn://a/"));
    let error = Two::start(&ca, &of_a, &ca.issue(&for_node("dtn://c/")), At::Address, "").await.fails().await;
    assert!(error.contains("names no peer") && error.contains("dtn://c/"), "{error}");
    // The name of the host is right, but the node ID counts.
    let mut both = for_node("dtn://c/");
    let names = both.custom_extensions.remove(0);
    let mut content = names.content().to_vec();
    content.extend([&[0x82, 9], &b"localhost"[..]].concat());
    content[1] = u8::try_from(content.len() - 2).unwrap();
    both.custom_extensions = vec![CustomExtension::from_oid_content(&[2, 5, 29, 17], content)];
    let error = Two::start(&ca, &of_a, &ca.issue(&both), At::Name, "").await.fails().await;
    assert!(error.contains("names no peer"), "{error}");
    // Nor is what has another's certificate admitted by the node that listens.
    let of_b = ca.issue(&for_node("dtn://b/"));
    let error = Two::start(&ca, &of_b, &of_b, At::Address, "").await.fails().await;
    assert!(error.contains("does not trust this node's certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_other_authorities_and_old_ones_are_refused() {
    let (ca, other) = (Ca::new(), Ca::called("other"));
    let of_a = ca.issue(&for_node("dtn://a/"));
    let error =
        Two::start(&ca, &of_a, &other.issue(&for_node("dtn://b/")), At::Address, "").await.fails().await;
    assert!(error.contains("no configured authority"), "{error}");
    // Not even one that has the name of ours.
    let imitation = Ca::new().issue(&for_node("dtn://b/"));
    let error = Two::start(&ca, &of_a, &imitation, At::Address, "").await.fails().await;
    assert!(error.contains("cannot be used"), "{error}");
    let mut old = for_node("dtn://b/");
    (old.not_before, old.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let error = Two::start(&ca, &of_a, &ca.issue(&old), At::Address, "").await.fails().await;
    assert!(error.contains("renew it") && error.contains("clocks"), "{error}");
    // On the other side, too.
    let mut old = for_node("dtn://a/");
    (old.not_before, old.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    let error = Two::start(&ca, &ca.issue(&old), &ca.issue(&for_node("dtn://b/")), At::Address, "")
        .await
        .fails()
        .await;
    assert!(error.contains("does not trust this node's certificate"), "{error}");
    // A certificate for signing code is none for connections.
    let mut code = for_node("dtn://b/");
    code.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
    let error = Two::start(&ca, &of_a, &ca.issue(&code), At::Address, "").await.fails().await;
    assert!(error.contains("cannot be used"), "{error}");
    // One that a node has made itself is no authority's.
    let own = bentpipe_dtn::tcpcl::identity::generate(&"dtn://b/".parse().unwrap()).unwrap();
    let error = Two::start(&ca, &of_a, &own, At::Address, "").await.fails().await;
    assert!(error.contains("authority") || error.contains("cannot be used"), "{error}");
}

/// RFC 9174 §4.4.4: A DNS name (DNS-ID) authenticates a peer whose address is that name, by default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dns_name_counts_if_it_is_that_of_the_address() {
    let ca = Ca::new();
    let of_a = ca.issue(&for_node("dtn://a/"));
    let of_b = ca.issue(&named(vec![dns("localhost")]));
    Two::start(&ca, &of_a, &of_b, At::Name, "").await.exchange().await;
    for (names, at, policy) in [
        (vec![dns("localhost")], At::Address, ""),
        (vec![dns("other.example.net")], At::Name, ""),
        (vec![dns("localhost")], At::Name, "other_names = [\"uri\"]\n"),
        (vec![dns("localhost")], At::Name, "other_names = []\n"),
    ] {
        let error = Two::start(&ca, &of_a, &ca.issue(&named(names)), at, policy).await.fails().await;
        assert!(error.contains("names no peer"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_uri_counts_where_the_configuration_says_so() {
    let ca = Ca::new();
    let of_a = ca.issue(&for_node("dtn://a/"));
    let of_b = ca.issue(&named(vec![uri("dtn://b/")]));
    Two::start(&ca, &of_a, &of_b, At::Address, "other_names = [\"uri\"]\n").await.exchange().await;
    let error = Two::start(&ca, &of_a, &of_b, At::Address, "").await.fails().await;
    assert!(error.contains("names no peer") && error.contains("dtn://b/"), "{error}");
    let of_c = ca.issue(&named(vec![uri("dtn://c/")]));
    let error = Two::start(&ca, &of_a, &of_c, At::Address, "other_names = [\"uri\"]\n").await.fails().await;
    assert!(error.contains("names no peer"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pinned_certificate_is_the_only_one_whatever_the_authority_issues() {
    let ca = Ca::new();
    let [of_a, of_b, renewed] = ["dtn://a/", "dtn://b/", "dtn://b/"].map(|id| ca.issue(&for_node(id)));
    let folder = tempfile::tempdir().unwrap();
    let pinned = folder.path().join("b.pem");
    std::fs::write(&pinned, &of_b.0).unwrap();
    let policy = format!("certificate = {pinned:?}\n");
    Two::start(&ca, &of_a, &of_b, At::Address, &policy).await.exchange().await;
    let error = Two::start(&ca, &of_a, &renewed, At::Address, &policy).await.fails().await;
    assert!(error.contains("none of the 1"), "{error}");
}

#[test]
fn a_file_without_certificates_is_no_authority() {
    let folder = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let own = keyed(folder.path(), &ca.issue(&for_node("dtn://a/")));
    let path = folder.path().join("empty.pem");
    std::fs::write(&path, "nothing").unwrap();
    let rest = peer("dtn://b/", None, "");
    let text = config(folder.path(), "dtn://a/", &format!("{own}authority = {path:?}\n"), &rest);
    let config = bentpipe_dtn::config::NodeConfig::parse("node.toml", &text).unwrap();
    let error = bentpipe_dtn::daemon::Prepared::new(config, None).unwrap_err().to_string();
    assert!(error.contains("empty.pem as an authority") && error.contains("PEM"), "{error}");
}
