//! The names in a certificate that rustls does not look at: a walk through its DER (X.690) to the alternative names
//! of its subject (RFC 5280 §4.2.1.6).

use std::fmt;

/// subjectAltName, 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1D, 0x11];
/// id-on-bundleEID, 1.3.6.1.5.5.7.8.11 (RFC 9174 §4.4.1).
pub(super) const BUNDLE_EID: &[u8] = &[0x2B, 0x06, 0x01, 0x05, 0x05, 0x07, 0x08, 0x0B];

const OBJECT_IDENTIFIER: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
const IA5_STRING: u8 = 0x16;
const SEQUENCE: u8 = 0x30;
const BOOLEAN: u8 = 0x01;
/// `[0]`, constructed: otherName among general names, and the value in it; the version of a certificate.
const CONTEXT_0: u8 = 0xA0;
/// `[3]`, constructed: the extensions of a certificate.
const EXTENSIONS: u8 = 0xA3;
/// `[6]`: uniformResourceIdentifier among general names.
const URI: u8 = 0x86;

/// What a certificate calls its subject.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Names {
    /// The node IDs, as bundle EIDs. One that is no text is empty, and nobody's.
    pub(super) nodes: Vec<String>,
    /// The URIs.
    pub(super) uris: Vec<String>,
}

impl Names {
    /// The names in a certificate. Of one that is malformed there are none.
    pub(super) fn of(certificate: &[u8]) -> Self {
        extension(certificate, SUBJECT_ALT_NAME).and_then(general_names).unwrap_or_default()
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes.is_empty() && self.uris.is_empty() {
            return f.write_str("it has neither a bundle EID nor a URI");
        }
        write!(f, "its bundle EIDs are {:?}, its URIs {:?}", self.nodes, self.uris)
    }
}

/// What is left to read.
#[derive(Clone, Copy)]
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next element: tag and content. `None` at the end, and if it is malformed.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        // A tag of several bytes occurs in no certificate.
        if tag & 0x1F == 0x1F {
            return None;
        }
        let (len, rest) = match first {
            0..=0x7F => (usize::from(first), rest),
            // DER has no indefinite length (0x80), and nothing in a certificate is longer than 16 MB.
            0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
                (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The content of the next element if it has this tag.
    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, content)| content)
    }

    fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// The content of a certificate's extension (RFC 5280 §4.1).
fn extension<'a>(certificate: &'a [u8], which: &[u8]) -> Option<&'a [u8]> {
    let to_be_signed = Der(Der(certificate).expect(SEQUENCE)?).expect(SEQUENCE)?;
    let mut fields = Der(to_be_signed);
    let extensions = loop {
        let (tag, content) = fields.next()?;
        if tag == EXTENSIONS {
            break Der(content).expect(SEQUENCE)?;
        }
    };
    let mut extensions = Der(extensions);
    while !extensions.is_empty() {
        let mut extension = Der(extensions.expect(SEQUENCE)?);
        let name = extension.expect(OBJECT_IDENTIFIER)?;
        let mut value = extension.next()?;
        if value.0 == BOOLEAN {
            value = extension.next()?;
        }
        if name == which {
            return (value.0 == OCTET_STRING && extension.is_empty()).then_some(value.1);
        }
    }
    None
}

fn general_names(content: &[u8]) -> Option<Names> {
    let mut outer = Der(content);
    let mut list = Der(outer.expect(SEQUENCE)?);
    let mut names = Names::default();
    while !list.is_empty() {
        match list.next()? {
            (CONTEXT_0, other) => {
                let mut other = Der(other);
                if other.expect(OBJECT_IDENTIFIER)? == BUNDLE_EID {
                    names.nodes.push(bundle_eid(other).unwrap_or_default());
                }
            }
            (URI, text) => names.uris.extend(ascii(text)),
            _ => {}
        }
    }
    outer.is_empty().then_some(names)
}

/// The value of an otherName that is a bundle EID: `[0]`, and in it an IA5String.
fn bundle_eid(mut other: Der<'_>) -> Option<String> {
    let mut value = Der(other.expect(CONTEXT_0)?);
    let text = value.expect(IA5_STRING)?;
    (value.is_empty() && other.is_empty()).then(|| ascii(text)).flatten()
}

/// An IA5String is ASCII.
fn ascii(text: &[u8]) -> Option<String> {
    String::from_utf8(text.to_vec()).ok().filter(|text| text.is_ascii())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, CustomExtension, KeyPair, SanType};
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::tcpcl::identity;

    /// A certificate with this content of subjectAltName.
    fn certificate(names: Vec<u8>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.custom_extensions = vec![
            CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![1, 2, 3]),
            CustomExtension::from_oid_content(&[2, 5, 29, 17], names),
        ];
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn node(certificate: &str) -> Vec<u8> {
        let (pem, _) = identity::generate(&certificate.parse().unwrap()).unwrap();
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
    }

    #[test]
    fn a_node_is_named_by_its_bundle_eid() {
        for name in ["dtn://gs1/", "ipn:5.0", &format!("dtn://{}/", "x".repeat(300))] {
            assert_eq!(Names::of(&node(name)), Names { nodes: vec![name.into()], uris: Vec::new() });
        }
    }

    #[test]
    fn uris_are_found_among_other_names() {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![
            SanType::DnsName("gs1.example.net".try_into().unwrap()),
            SanType::URI("dtn://gs1/".try_into().unwrap()),
            SanType::IpAddress("192.0.2.1".parse().unwrap()),
        ];
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(
            Names::of(certificate.der()),
            Names { nodes: Vec::new(), uris: vec!["dtn://gs1/".into()] }
        );
    }

    #[test]
    fn a_node_id_of_another_form_is_nobodys_and_still_there() {
        let oid = [&[0x06, 8], BUNDLE_EID].concat();
        let other = |value: &[u8]| {
            let content = [oid.as_slice(), value].concat();
            let name = [&[CONTEXT_0, content.len() as u8], content.as_slice()].concat();
            Names::of(&certificate([&[SEQUENCE, name.len() as u8], name.as_slice()].concat())).nodes
        };
        assert_eq!(other(&[0xA0, 4, 0x16, 2, b'h', b'i']), ["hi"]);
        for value in [
            // A UTF8String, no ASCII, something behind it, nothing, and what is longer than it is.
            &[0xA0, 4, 0x0C, 2, b'h', b'i'][..],
            &[0xA0, 4, 0x16, 2, b'h', 0xFF],
            &[0xA0, 5, 0x16, 2, b'h', b'i', 0],
            &[0xA0, 4, 0x16, 2, b'h', b'i', 0x05, 0],
            &[],
            &[0xA0, 4, 0x16, 9, b'h', b'i'],
            &[0xA0, 4, 0x16, 0x80, b'h', b'i'],
        ] {
            assert_eq!(other(value), [""], "{value:?}");
        }
    }

    #[test]
    fn a_certificate_without_names_has_none() {
        let plain = CertificateParams::default().self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(Names::of(plain.der()), Names::default());
        assert_eq!(Names::of(&certificate(vec![0x30, 9])), Names::default());
        assert_eq!(Names::of(&[]), Names::default());
    }

    proptest! {
        #[test]
        fn garbage_has_no_names(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(Names::of(&bytes), Names::default());
        }

        #[test]
        fn garbage_among_the_names_is_survived(names in prop::collection::vec(any::<u8>(), 0..100)) {
            let content = [&[SEQUENCE, names.len() as u8], names.as_slice()].concat();
            if let Some(names) = general_names(&content) {
                prop_assert!(names.uris.iter().chain(&names.nodes).all(|name| name.is_ascii()));
            }
        }

        #[test]
        fn a_certificate_that_is_cut_short_or_changed_is_survived(
            cut in 0_usize..400, at in 0_usize..400, byte: u8
        ) {
            // The same for all cases: it is made once.
            static CERTIFICATE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
            let whole = CERTIFICATE.get_or_init(|| node("dtn://gs1/"));
            prop_assert_eq!(Names::of(&whole[..cut.min(whole.len() - 1)]), Names::default());
            let mut changed = whole.clone();
            let at = at.min(whole.len() - 1);
            changed[at] = byte;
            let names = Names::of(&changed);
            prop_assert!(names.nodes.len() <= 1 && names.uris.is_empty(), "{names:?}");
        }
    }
}
