//! Attacks on the metadata. Each has its own error.

use std::collections::BTreeMap;

use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};

use super::metadata::{
    FileVersion, Hashes, RoleKeys, RootMetadata, SPEC_VERSION, SignedFile, TargetFile,
    TargetsMetadata, VersionsMetadata,
};
use super::*;
use crate::Sha256Digest;

const TARGET: &str = "bundles/one.json";

fn now() -> Timestamp {
    "2026-11-19T12:00:00Z".parse().unwrap()
}

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32]).unwrap().unwrap()
}

/// A release of a repository, of which a test changes a part before it is signed.
#[derive(Clone)]
struct Release {
    /// Seeds of the keys of all roles.
    root_keys: Vec<u8>,
    role_keys: Vec<u8>,
    threshold: u32,
    root: u64,
    versions: [u64; 3],
    expires: BTreeMap<MetadataRole, Timestamp>,
    /// Seeds that sign the root, if not its keys.
    root_signers: Option<Vec<u8>>,
}

impl Release {
    fn first() -> Self {
        Self {
            root_keys: vec![1, 2],
            role_keys: vec![3],
            threshold: 2,
            root: 1,
            versions: [1; 3],
            expires: BTreeMap::new(),
            root_signers: None,
        }
    }

    fn expiry(&self, role: MetadataRole) -> Timestamp {
        self.expires.get(&role).copied().unwrap_or(now() + 24.hours())
    }

    fn root_metadata(&self) -> RootMetadata {
        let seeds = self.root_keys.iter().chain(&self.role_keys);
        let keys = seeds.map(|seed| (key(*seed).id().to_string(), key(*seed).public().clone()));
        let roles = MetadataRole::ALL.map(|role| {
            let (seeds, threshold) = match role {
                MetadataRole::Root => (&self.root_keys, self.threshold),
                _ => (&self.role_keys, 1),
            };
            let keyids = seeds.iter().map(|seed| key(*seed).id().to_string()).collect();
            (role.name().to_owned(), RoleKeys { keyids, threshold })
        });
        RootMetadata {
            kind: "root".to_owned(),
            spec_version: SPEC_VERSION.to_owned(),
            version: self.root,
            expires: self.expiry(MetadataRole::Root),
            consistent_snapshot: true,
            keys: keys.collect(),
            roles: roles.into(),
        }
    }

    fn root(&self) -> Vec<u8> {
        let signers = self.root_signers.as_ref().unwrap_or(&self.root_keys);
        sign(&self.root_metadata(), signers)
    }

    fn targets(&self) -> Vec<u8> {
        let file = TargetFile { length: 3, hashes: Hashes { sha256: Sha256Digest::of(b"one") } };
        let metadata = TargetsMetadata {
            kind: "targets".to_owned(),
            spec_version: SPEC_VERSION.to_owned(),
            version: self.versions[2],
            expires: self.expiry(MetadataRole::Targets),
            targets: BTreeMap::from([(TARGET.to_owned(), file)]),
        };
        sign(&metadata, &self.role_keys)
    }

    fn versions(&self, role: MetadataRole, version: u64, named: &str, of: u64) -> Vec<u8> {
        let bytes = match role {
            MetadataRole::Timestamp => self.snapshot(),
            _ => self.targets(),
        };
        let file = FileVersion {
            version: of,
            length: Some(bytes.len() as u64),
            hashes: Some(Hashes { sha256: Sha256Digest::of(&bytes) }),
        };
        let metadata = VersionsMetadata {
            kind: role.name().to_owned(),
            spec_version: SPEC_VERSION.to_owned(),
            version,
            expires: self.expiry(role),
            meta: BTreeMap::from([(named.to_owned(), file)]),
        };
        sign(&metadata, &self.role_keys)
    }

    fn snapshot(&self) -> Vec<u8> {
        self.versions(MetadataRole::Snapshot, self.versions[1], "targets.json", self.versions[2])
    }

    fn timestamp(&self) -> Vec<u8> {
        self.versions(MetadataRole::Timestamp, self.versions[0], "snapshot.json", self.versions[1])
    }

    /// What a client trusts that starts at this root.
    fn update(&self) -> Result<TrustedMetadata, TrustError> {
        let mut trusted = TrustedMetadata::new(&self.root())?;
        trusted.check_root(now())?;
        self.update_roles(&mut trusted)?;
        Ok(trusted)
    }

    fn update_roles(&self, trusted: &mut TrustedMetadata) -> Result<(), TrustError> {
        trusted.update_timestamp(&self.timestamp(), now())?;
        trusted.update_snapshot(&self.snapshot(), now())?;
        trusted.update_targets(&self.targets(), now())
    }

    /// A client that trusted this release before, and now updates to another one.
    fn then(&self, next: &Self) -> Result<(), TrustError> {
        let mut trusted = TrustedMetadata::new(&self.root())?;
        trusted.load_previous(MetadataRole::Timestamp, &self.timestamp());
        trusted.load_previous(MetadataRole::Snapshot, &self.snapshot());
        trusted.load_previous(MetadataRole::Targets, &self.targets());
        next.update_roles(&mut trusted)
    }
}

fn sign(metadata: &impl Serialize, seeds: &[u8]) -> Vec<u8> {
    let signed = serde_json::to_value(metadata).unwrap();
    sign_value(signed, seeds)
}

fn sign_value(signed: Value, seeds: &[u8]) -> Vec<u8> {
    let message = crate::canonical::encode(&signed).unwrap();
    let signatures = seeds.iter().map(|seed| key(*seed).sign(&message)).collect();
    serde_json::to_vec(&SignedFile { signatures, signed }).unwrap()
}

/// Signs the content again after a change, as an insider with the keys could.
fn resigned(bytes: &[u8], seeds: &[u8], change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut file: SignedFile = serde_json::from_slice(bytes).unwrap();
    change(&mut file.signed);
    sign_value(file.signed, seeds)
}

#[test]
fn a_signed_release_is_trusted() {
    let trusted = Release::first().update().unwrap();
    trusted.check_target(TARGET, b"one").unwrap();
    Release::first().then(&Release { versions: [2, 2, 2], ..Release::first() }).unwrap();
    Release::first().then(&Release::first()).unwrap();
}

/// A repository that the reference implementation wrote (python-tuf 7.0.1).
#[test]
fn metadata_of_the_reference_implementation_is_trusted() {
    let manifest = include_bytes!("../../tests/input/manifest_v1.json");
    let root = include_bytes!("../../tests/input/python_tuf/1.root.json");
    let mut trusted = TrustedMetadata::new(root).unwrap();
    let [timestamp, snapshot, targets]: [&[u8]; 3] = [
        include_bytes!("../../tests/input/python_tuf/timestamp.json"),
        include_bytes!("../../tests/input/python_tuf/1.snapshot.json"),
        include_bytes!("../../tests/input/python_tuf/1.targets.json"),
    ];
    trusted.update_timestamp(timestamp, now()).unwrap();
    trusted.update_snapshot(snapshot, now()).unwrap();
    trusted.update_targets(targets, now()).unwrap();
    trusted.check_target("bundles/x.json", manifest).unwrap();
}

#[test]
fn a_target_has_its_length_and_hash() {
    let trusted = Release::first().update().unwrap();
    let check = |name, bytes: &[u8]| trusted.check_target(name, bytes).unwrap_err();
    assert!(matches!(check(TARGET, b"two"), TrustError::WrongHash { .. }));
    assert!(matches!(
        check(TARGET, b"ones"),
        TrustError::WrongLength { expected: 3, found: 4, .. }
    ));
    assert!(matches!(check("bundles/two.json", b"one"), TrustError::NoTarget { .. }));
}

#[test]
fn older_metadata_of_each_role_is_a_rollback() {
    let trusted = Release { versions: [5, 5, 5], ..Release::first() };
    for (versions, expected) in [
        ([4, 5, 5], MetadataRole::Timestamp),
        ([6, 4, 5], MetadataRole::Snapshot),
        ([6, 6, 4], MetadataRole::Targets),
    ] {
        let err = trusted.then(&Release { versions, ..Release::first() }).unwrap_err();
        assert!(
            matches!(err, TrustError::Rollback { role, trusted: 5, found: 4 } if role == expected),
            "{err}"
        );
    }
    let mut client = TrustedMetadata::new(&Release { root: 5, ..Release::first() }.root()).unwrap();
    let err = client.update_root(&Release { root: 4, ..Release::first() }.root()).unwrap_err();
    assert!(matches!(err, TrustError::Rollback { role: MetadataRole::Root, trusted: 5, found: 4 }));
    assert_eq!(err.to_string(), "the root metadata has version 4; version 5 was trusted before");
}

#[test]
fn metadata_of_the_same_version_does_not_change() {
    let later = BTreeMap::from([(MetadataRole::Timestamp, now() + 48.hours())]);
    let err = Release::first().then(&Release { expires: later, ..Release::first() }).unwrap_err();
    assert!(matches!(err, TrustError::Replaced { role: MetadataRole::Timestamp, version: 1 }));
}

#[test]
fn expired_metadata_of_each_role_is_refused() {
    for expected in MetadataRole::ALL {
        let expires = BTreeMap::from([(expected, now())]);
        let err = Release { expires, ..Release::first() }.update().unwrap_err();
        assert!(matches!(err, TrustError::Expired { role, .. } if role == expected), "{err}");
    }
    // Expired metadata still shows which versions were trusted.
    let expires = BTreeMap::from([(MetadataRole::Timestamp, now() - 1.hour())]);
    let old = Release { versions: [5, 5, 5], expires, ..Release::first() };
    assert!(matches!(old.then(&Release::first()), Err(TrustError::Rollback { .. })));
}

#[test]
fn files_of_two_releases_do_not_mix() {
    let (one, two) = (Release::first(), Release { versions: [2, 2, 2], ..Release::first() });
    let mut client = TrustedMetadata::new(&one.root()).unwrap();
    client.update_timestamp(&two.timestamp(), now()).unwrap();
    let err = client.update_snapshot(&one.snapshot(), now()).unwrap_err();
    assert!(
        matches!(err, TrustError::WrongMetadataHash { role: MetadataRole::Snapshot, .. }),
        "{err}"
    );
    client.update_snapshot(&two.snapshot(), now()).unwrap();
    let err = client.update_targets(&one.targets(), now()).unwrap_err();
    assert!(
        matches!(err, TrustError::WrongMetadataHash { role: MetadataRole::Targets, .. }),
        "{err}"
    );
    // Also if the repository publishes no hashes.
    let without_hash = |bytes: &[u8], name: &str| {
        resigned(bytes, &[3], |signed| {
            signed["meta"][name] = json!({"version": 2});
        })
    };
    let mut client = TrustedMetadata::new(&one.root()).unwrap();
    client.update_timestamp(&without_hash(&two.timestamp(), "snapshot.json"), now()).unwrap();
    let err = client.update_snapshot(&one.snapshot(), now()).unwrap_err();
    assert!(
        matches!(
            err,
            TrustError::MixAndMatch { role: MetadataRole::Snapshot, expected: 2, found: 1, .. }
        ),
        "{err}"
    );
    client.update_snapshot(&without_hash(&two.snapshot(), "targets.json"), now()).unwrap();
    let err = client.update_targets(&one.targets(), now()).unwrap_err();
    assert!(matches!(err, TrustError::MixAndMatch { role: MetadataRole::Targets, .. }), "{err}");
    assert!(
        err.to_string().contains("the snapshot") || err.to_string().contains("snapshot names"),
        "{err}"
    );
}

#[test]
fn metadata_of_another_length_is_refused() {
    let release = Release::first();
    let mut client = TrustedMetadata::new(&release.root()).unwrap();
    client.update_timestamp(&release.timestamp(), now()).unwrap();
    let mut longer = release.snapshot();
    longer.push(b' ');
    let err = client.update_snapshot(&longer, now()).unwrap_err();
    assert!(matches!(err, TrustError::WrongMetadataLength { role: MetadataRole::Snapshot, .. }));
}

#[test]
fn steps_cannot_be_skipped() {
    let release = Release::first();
    let mut client = TrustedMetadata::new(&release.root()).unwrap();
    let err = client.update_snapshot(&release.snapshot(), now()).unwrap_err();
    assert!(matches!(err, TrustError::NotVerified { role: MetadataRole::Timestamp }));
    let err = client.update_targets(&release.targets(), now()).unwrap_err();
    assert!(matches!(err, TrustError::NotVerified { role: MetadataRole::Snapshot }));
    assert!(matches!(client.targets(), Err(TrustError::NotVerified { .. })));
}

#[test]
fn keys_rotate_through_the_chain_of_roots() {
    let first = Release::first();
    let second = Release {
        root: 2,
        root_keys: vec![11, 12],
        role_keys: vec![13],
        root_signers: Some(vec![1, 2, 11, 12]),
        ..Release::first()
    };
    let mut client = TrustedMetadata::new(&first.root()).unwrap();
    client.update_root(&second.root()).unwrap();
    second.update_roles(&mut client).unwrap();
    // Metadata of the replaced keys is dropped, so that versions may start again.
    let high = Release { versions: [9, 9, 9], ..Release::first() };
    let mut client = TrustedMetadata::new(&first.root()).unwrap();
    client.update_root(&second.root()).unwrap();
    client.load_previous(MetadataRole::Timestamp, &high.timestamp());
    second.update_roles(&mut client).unwrap();
}

#[test]
fn a_revoked_key_signs_nothing() {
    let first = Release::first();
    let rotated = Release {
        root: 2,
        role_keys: vec![13],
        root_signers: Some(vec![1, 2]),
        ..Release::first()
    };
    let mut client = TrustedMetadata::new(&first.root()).unwrap();
    client.update_root(&rotated.root()).unwrap();
    let err = first.update_roles(&mut client).unwrap_err();
    let revoked = key(3).id();
    assert!(
        matches!(&err, TrustError::RevokedKey { role: MetadataRole::Timestamp, keyid } if *keyid == revoked),
        "{err}"
    );
    // A root key that was replaced does not sign the root after the next.
    let third = Release {
        root: 3,
        root_keys: vec![11, 12],
        root_signers: Some(vec![1, 2, 11, 12]),
        ..rotated.clone()
    };
    client.update_root(&third.root()).unwrap();
    let fourth = Release { root: 4, root_signers: Some(vec![1, 2]), ..third.clone() };
    let err = client.update_root(&fourth.root()).unwrap_err();
    assert!(matches!(err, TrustError::RevokedKey { role: MetadataRole::Root, .. }), "{err}");
}

#[test]
fn each_root_needs_the_threshold_of_the_old_and_of_the_new_keys() {
    let err =
        TrustedMetadata::new(&Release { root_signers: Some(vec![1]), ..Release::first() }.root());
    assert!(matches!(err, Err(TrustError::Threshold { threshold: 2, valid: 1, .. })));
    // One key that signs twice is one signature.
    let twice = Release { root_signers: Some(vec![1, 1]), ..Release::first() };
    assert!(matches!(
        TrustedMetadata::new(&twice.root()),
        Err(TrustError::Threshold { threshold: 2, valid: 1, .. })
    ));
    let next = |root_signers| Release {
        root: 2,
        root_keys: vec![11, 12],
        root_signers: Some(root_signers),
        ..Release::first()
    };
    for signers in [vec![11, 12], vec![1, 11, 12], vec![1, 2], vec![1, 2, 11], vec![]] {
        let mut client = TrustedMetadata::new(&Release::first().root()).unwrap();
        let err = client.update_root(&next(signers.clone()).root()).unwrap_err();
        assert!(matches!(err, TrustError::Threshold { .. }), "{signers:?}: {err}");
    }
    let unsigned = Release { role_keys: vec![99], ..Release::first() };
    let mut client = TrustedMetadata::new(&Release::first().root()).unwrap();
    let err = client.update_timestamp(&unsigned.timestamp(), now()).unwrap_err();
    assert_eq!(err.to_string(), "the timestamp metadata has 0 of the 1 signatures that it needs");
}

#[test]
fn the_chain_of_roots_has_no_gap() {
    let mut client = TrustedMetadata::new(&Release::first().root()).unwrap();
    let third = Release { root: 3, ..Release::first() };
    let err = client.update_root(&third.root()).unwrap_err();
    assert!(matches!(err, TrustError::RootGap { expected: 2, found: 3 }));
}

#[test]
fn a_changed_byte_breaks_the_signature() {
    let release = Release::first();
    let text = String::from_utf8(release.timestamp()).unwrap();
    let changed = text.replacen("\"version\":1", "\"version\":7", 1);
    let mut client = TrustedMetadata::new(&release.root()).unwrap();
    let err = client.update_timestamp(changed.as_bytes(), now()).unwrap_err();
    assert!(matches!(err, TrustError::Threshold { valid: 0, .. }));
}

#[test]
fn endless_metadata_is_not_parsed() {
    let mut client = TrustedMetadata::new(&Release::first().root()).unwrap();
    let endless = vec![b' '; 17 << 10];
    let err = client.update_timestamp(&endless, now()).unwrap_err();
    assert!(matches!(err, TrustError::TooLong { role: MetadataRole::Timestamp, .. }));
}

#[test]
fn target_names_stay_below_their_folder() {
    for name in
        ["../x", "/etc/passwd", "a/../../b", "a//b", "", ".ssh/x", "a\\b", "a\u{0}b", "a/%2e%2e/b"]
    {
        let release = Release::first();
        let targets = resigned(&release.targets(), &[3], |signed| {
            let file = signed["targets"][TARGET].clone();
            signed["targets"] = json!({ name: file });
        });
        let without_hash = |bytes: &[u8], name: &str| {
            resigned(bytes, &[3], |signed| signed["meta"][name] = json!({"version": 1}))
        };
        let mut client = TrustedMetadata::new(&release.root()).unwrap();
        let timestamp = without_hash(&release.timestamp(), "snapshot.json");
        client.update_timestamp(&timestamp, now()).unwrap();
        let snapshot = without_hash(&release.snapshot(), "targets.json");
        client.update_snapshot(&snapshot, now()).unwrap();
        let err = client.update_targets(&targets, now()).unwrap_err();
        assert!(matches!(&err, TrustError::PathEscape { name: found } if found == name), "{err}");
    }
}

#[test]
fn roots_that_weaken_the_repository_are_refused() {
    type Change = fn(&mut Value);
    type IsExpected = fn(&TrustError) -> bool;
    let cases: [(Change, IsExpected); 9] = [
        (
            |root| root["spec_version"] = json!("2.0.0"),
            |err| matches!(err, TrustError::SpecVersion { .. }),
        ),
        (
            |root| root["_type"] = json!("timestamp"),
            |err| matches!(err, TrustError::WrongType { .. }),
        ),
        (
            |root| root["roles"]["mirrors"] = root["roles"]["root"].clone(),
            |err| matches!(err, TrustError::UnknownRole { name } if name == "mirrors"),
        ),
        (
            |root| drop(root["roles"].as_object_mut().unwrap().remove("targets")),
            |err| matches!(err, TrustError::RoleMissing { role: MetadataRole::Targets }),
        ),
        (
            |root| root["roles"]["timestamp"]["threshold"] = json!(0),
            |err| matches!(err, TrustError::ZeroThreshold { .. }),
        ),
        (
            |root| root["consistent_snapshot"] = json!(false),
            |err| matches!(err, TrustError::InconsistentSnapshot),
        ),
        (
            |root| root["roles"]["targets"]["keyids"] = json!(["ab"]),
            |err| matches!(err, TrustError::KeyMissing { .. }),
        ),
        (
            |root| {
                let keys = root["keys"].as_object_mut().unwrap();
                let (_, key) = keys.clone().into_iter().next().unwrap();
                keys.insert("0".repeat(64), key);
            },
            |err| matches!(err, TrustError::KeyIdMismatch { .. }),
        ),
        (|root| root["delegations"] = json!({}), |err| matches!(err, TrustError::Form { .. })),
    ];
    for (change, is_expected) in cases {
        let root = resigned(&Release::first().root(), &[1, 2], change);
        let err = TrustedMetadata::new(&root).unwrap_err();
        assert!(is_expected(&err), "{err:?}");
    }
}

#[test]
fn other_file_names_in_metadata_are_refused() {
    let release = Release::first();
    let timestamp = resigned(&release.timestamp(), &[3], |signed| {
        signed["meta"]["other.json"] = json!({"version": 1});
    });
    let mut client = TrustedMetadata::new(&release.root()).unwrap();
    let err = client.update_timestamp(&timestamp, now()).unwrap_err();
    assert!(matches!(err, TrustError::UnknownFile { name, .. } if name == "other.json"));
    let timestamp = resigned(&release.timestamp(), &[3], |signed| signed["meta"] = json!({}));
    let err = client.update_timestamp(&timestamp, now()).unwrap_err();
    assert!(matches!(err, TrustError::NotListed { role: MetadataRole::Snapshot, .. }));
}

proptest! {
    #[test]
    fn no_bytes_make_the_verification_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = TrustedMetadata::new(&bytes);
        let mut client = TrustedMetadata::new(&Release::first().root()).unwrap();
        let _ = client.update_timestamp(&bytes, now());
    }

    #[test]
    fn no_changed_byte_is_trusted(at in any::<prop::sample::Index>(), byte: u8) {
        let release = Release::first();
        let mut bytes = release.timestamp();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != byte);
        let before: Value = serde_json::from_slice(&bytes).unwrap();
        bytes[at] = byte;
        let mut client = TrustedMetadata::new(&release.root()).unwrap();
        if client.update_timestamp(&bytes, now()).is_ok() {
            prop_assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), before);
        }
    }
}
