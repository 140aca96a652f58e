//! BPSec at this node: which bundles are protected with which keys, protection of what applications send, and
//! its verification before delivery (RFC 9172 §5.1). This node is a security source and a security acceptor;
//! what it forwards it does not verify.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ring::rand::{SecureRandom, SystemRandom};

use crate::bundle::Bundle;
use crate::bundle::report::{ReasonCode, Status};
use crate::bundle::security::{
    CheckError, ConfidentialityKey, ExtensionCheck, IV_LEN, IntegrityKey, SecurityFault,
};
use crate::config::SecuritySettings;
use crate::store::{Payload, Record, StoreError};
use crate::{Eid, EidPattern};

use super::{Node, Refused};

pub(crate) mod key_file;

pub use key_file::KeyError;

/// Which bundles are protected, and their keys: the `[[security]]` of a configuration.
#[derive(Debug, Clone, Default)]
pub struct Policies(Arc<[Policy]>);

/// One of them.
#[derive(Debug, Clone)]
struct Policy {
    source: EidPattern,
    destination: EidPattern,
    integrity: Option<IntegrityKey>,
    confidentiality: Option<ConfidentialityKey>,
}

/// The policies that are in force.
#[derive(Default)]
pub(super) struct Security {
    policies: Mutex<Policies>,
    /// Held while a payload is in memory, so that only one is.
    payload: Mutex<()>,
}

/// A bundle after the security operations that this node has to do.
pub(super) enum Secured {
    Kept(Bundle, Payload),
    /// It must not be delivered, for this reason.
    Deleted(Bundle, ReasonCode),
}

/// Why a bundle was not accepted.
enum Failure {
    Fault(SecurityFault),
    Refused(Refused),
}

impl Policies {
    /// Reads the keys.
    ///
    /// # Errors
    /// A key cannot be used, or others than its owner may read it.
    pub fn load(settings: &[SecuritySettings]) -> Result<Self, KeyError> {
        let policy = |settings: &SecuritySettings| {
            let integrity = settings.integrity.as_deref().map(key_file::integrity).transpose()?;
            let confidentiality =
                settings.confidentiality.as_deref().map(key_file::confidentiality).transpose()?;
            let wrapping = settings.key_encryption.as_deref().map(key_file::key_encryption).transpose()?;
            Ok(Policy {
                source: settings.source.clone(),
                destination: settings.destination.clone(),
                integrity: integrity.map(|key| key.unwrapping_by(wrapping.clone())),
                confidentiality: confidentiality.map(|key| key.unwrapping_by(wrapping)),
            })
        };
        settings.iter().map(policy).collect::<Result<_, _>>().map(Self)
    }

    /// The first that is for this bundle.
    fn of(&self, bundle: &Bundle) -> Option<&Policy> {
        let is_for = |policy: &&Policy| {
            policy.source.matches(&bundle.id.source) && policy.destination.matches(&bundle.destination)
        };
        self.0.iter().find(is_for)
    }
}

impl Security {
    pub(super) fn new(policies: Policies) -> Self {
        Self { policies: Mutex::new(policies), payload: Mutex::default() }
    }
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Security").finish_non_exhaustive()
    }
}

impl Node {
    /// Puts other policies and keys in force, for all bundles that are sent or arrive from now on.
    pub fn set_policies(&self, policies: Policies) {
        *self.0.security.policies.lock().unwrap_or_else(PoisonError::into_inner) = policies;
    }

    fn policies(&self) -> Policies {
        self.0.security.policies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does what the policies ask of a bundle that is about to be stored: protects it if it leaves this node,
    /// verifies and decrypts it if it has come to be delivered. Its payload, where another one takes its place,
    /// and where this fails, is discarded. Blocks on the disk.
    pub(super) fn secure(
        &self,
        bundle: Bundle,
        payload: Payload,
        from: Option<&Eid>,
    ) -> Result<Secured, Refused> {
        let before = payload.clone();
        let secured = match (from, self.is_mine(&bundle.destination), bundle.id.fragment) {
            (None, false, None) => self.protect(bundle, payload),
            (Some(_), true, None) => self.verify(bundle, payload),
            _ => Ok(Secured::Kept(bundle, payload)),
        };
        if !matches!(&secured, Ok(Secured::Kept(_, payload)) if *payload == before) {
            self.0.store.discard(before);
        }
        secured
    }

    /// The same for a bundle whose fragments are complete (RFC 9172 §5.2): the reason, if it must not be
    /// delivered. The payload stays that of the fragments' records if it is not another one.
    pub(super) fn secure_reassembled(&self, record: Record) -> Result<(Record, Option<ReasonCode>), Refused> {
        match self.verify(Bundle::clone(&record.bundle), record.payload.clone())? {
            Secured::Kept(bundle, payload) => {
                Ok((Record { bundle: Arc::new(bundle), payload, ..record }, None))
            }
            Secured::Deleted(_, why) => Ok((record, Some(why))),
        }
    }

    /// Reports that a bundle has been received and deleted. It is not remembered: a forged bundle must not keep
    /// away the one whose ID it has.
    pub(super) fn delete_insecure(&self, bundle: &Bundle, why: ReasonCode) {
        self.report(bundle, Status::Received, ReasonCode::NO_INFORMATION);
        self.report_insecure(bundle, why);
    }

    /// Counts and reports that a bundle has been deleted whose reception has been reported.
    pub(super) fn report_insecure(&self, bundle: &Bundle, why: ReasonCode) {
        tracing::info!("deleted {} to {}: {why}", bundle.id, bundle.destination);
        self.0.counters.given_up.add(1);
        self.report(bundle, Status::Deleted, why);
    }

    /// The security source.
    fn protect(&self, mut bundle: Bundle, payload: Payload) -> Result<Secured, Refused> {
        let policies = self.policies();
        let Some(policy) = policies.of(&bundle) else { return Ok(Secured::Kept(bundle, payload)) };
        let me = &self.0.me;
        if let Some(key) = &policy.integrity {
            let mut reader = self.0.store.read(&payload);
            let reader: &mut dyn Read = &mut reader;
            let plain = policy.confidentiality.is_none().then_some(reader);
            bundle.add_integrity(key, me, plain).map_err(unreadable)?;
        }
        let Some(key) = &policy.confidentiality else { return Ok(Secured::Kept(bundle, payload)) };
        bundle.check_length().map_err(cannot_protect)?;
        let _one_in_memory = self.0.security.payload.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = self.read_payload(&payload)?;
        bundle.encrypt(key, me, random()?, &mut text).map_err(cannot_protect)?;
        Ok(Secured::Kept(bundle, self.write_payload(&text)?))
    }

    /// The security acceptor.
    fn verify(&self, mut bundle: Bundle, payload: Payload) -> Result<Secured, Refused> {
        match self.accept_operations(&mut bundle, &payload) {
            Ok(plain) => Ok(Secured::Kept(bundle, plain.unwrap_or(payload))),
            Err(Failure::Refused(refused)) => Err(refused),
            Err(Failure::Fault(fault)) => {
                self.0.counters.security_failed.add(1);
                tracing::warn!("cannot deliver {}: {fault}", bundle.id);
                Ok(Secured::Deleted(bundle, fault.reason()))
            }
        }
    }

    /// Decrypts, then checks: the decrypted payload, if it was encrypted.
    fn accept_operations(&self, bundle: &mut Bundle, payload: &Payload) -> Result<Option<Payload>, Failure> {
        let policies = self.policies();
        let policy = policies.of(bundle);
        let is_encrypted = bundle.is_encrypted();
        let key = match (policy.and_then(|policy| policy.confidentiality.as_ref()), is_encrypted) {
            (None, true) => return Err(SecurityFault::Unexpected.into()),
            (Some(_), false) => return Err(SecurityFault::Missing("encryption of the payload").into()),
            (key, _) => key,
        };
        let Some(policy) = policy else { return Ok(None) };
        let integrity = policy.integrity.as_ref();
        let plain = match key {
            Some(key) => Some(self.decrypt(bundle, payload, key, integrity)?),
            None => {
                if let Some(key) = integrity {
                    bundle.check_integrity(key, false, || self.0.store.read(payload))?;
                    remove_changed_blocks(bundle, key);
                }
                None
            }
        };
        bundle.remove_security_blocks();
        Ok(plain)
    }

    /// Decrypts a payload, checks the integrity of what it was if there is a key, and stores it.
    fn decrypt(
        &self,
        bundle: &mut Bundle,
        payload: &Payload,
        key: &ConfidentialityKey,
        integrity: Option<&IntegrityKey>,
    ) -> Result<Payload, Failure> {
        bundle.check_length()?;
        let _one_in_memory = self.0.security.payload.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = self.read_payload(payload)?;
        bundle.decrypt(key, &mut text)?;
        if let Some(key) = integrity {
            bundle.check_integrity(key, true, || &text[..])?;
            remove_changed_blocks(bundle, key);
        }
        Ok(self.write_payload(&text)?)
    }

    /// A payload whose length has been checked.
    fn read_payload(&self, payload: &Payload) -> Result<Vec<u8>, Refused> {
        // Room for a tag, so that decryption does not move it.
        let len = usize::try_from(payload.len()).unwrap_or_default();
        let mut text = Vec::with_capacity(len.saturating_add(32));
        self.0.store.read(payload).read_to_end(&mut text).map_err(unreadable)?;
        Ok(text)
    }

    fn write_payload(&self, text: &[u8]) -> Result<Payload, Refused> {
        let mut writer = self.0.store.begin(Some(text.len() as u64))?;
        writer.write(text)?;
        Ok(writer.finish()?)
    }
}

/// Removes extension blocks that are not as they were when they were protected, except for those that change
/// on the way.
fn remove_changed_blocks(bundle: &mut Bundle, key: &IntegrityKey) {
    for check in bundle.check_extension_blocks(key) {
        let ExtensionCheck { kind, number, source, is_right, changes_on_the_way } = check;
        let id = &bundle.id;
        match (is_right, changes_on_the_way) {
            (true, _) => {}
            (false, true) => {
                tracing::debug!(
                    "{id}: block {number} of type {kind} has changed since {source} protected it"
                );
            }
            (false, false) => {
                tracing::warn!(
                    "{id}: block {number} of type {kind} is removed: it has changed since {source} protected it, \
                     or {source} has another key"
                );
                bundle.remove_extension_block(number);
            }
        }
    }
}

/// An initialization vector that no other bundle has had: with random ones that is so for 2³² bundles of a key
/// (NIST SP 800-38D §8.3).
fn random() -> Result<[u8; IV_LEN], Refused> {
    let mut iv = [0; IV_LEN];
    match SystemRandom::new().fill(&mut iv) {
        Ok(()) => Ok(iv),
        Err(_) => Err(Refused::Invalid("the operating system gives no randomness to encrypt with".into())),
    }
}

fn cannot_protect(fault: SecurityFault) -> Refused {
    Refused::Invalid(format!("cannot encrypt the payload as [[security]] demands: {fault}"))
}

fn unreadable(error: io::Error) -> Refused {
    StoreError::io("read a payload of", Path::new("the store"), error).into()
}

impl From<SecurityFault> for Failure {
    fn from(fault: SecurityFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<CheckError> for Failure {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Fault(fault) => Self::Fault(fault),
            CheckError::Read(error) => Self::Refused(unreadable(error)),
        }
    }
}
