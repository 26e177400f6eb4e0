//! What to do about errors of bundles.

use farrier_bundle::create::CreateError;
use farrier_bundle::fetch::FetchError;
use farrier_bundle::store::BundleStoreError;
use farrier_bundle::tuf::client::ImportError;
use farrier_bundle::tuf::publisher::PublishError;
use farrier_bundle::tuf::{KeyFileError, TrustError};

use crate::failure::Hinted;

/// Puts a hint above an error, if there is one.
fn hinted<E>(err: E, what: &str, hint: Option<&str>) -> anyhow::Error
where
    E: std::error::Error + Send + Sync + 'static,
{
    match hint {
        Some(hint) => anyhow::Error::new(err).context(Hinted::plain(what, hint)),
        None => err.into(),
    }
}

pub(super) fn store(err: BundleStoreError) -> anyhow::Error {
    let hint = store_hint(&err);
    hinted(err, "failed to use the bundle store", hint)
}

fn store_hint(err: &BundleStoreError) -> Option<&'static str> {
    match err {
        BundleStoreError::NoStore { .. } => {
            Some("name the folder with --store; `farrier bundle create` and `import` make one")
        }
        BundleStoreError::NoBundle { .. }
        | BundleStoreError::NoMatch { .. }
        | BundleStoreError::Ambiguous { .. } => {
            Some("`farrier bundle inspect` lists the bundles of the store")
        }
        BundleStoreError::NoSpace { .. } => Some("free space, or name another folder with --store"),
        BundleStoreError::DamagedManifest { .. }
        | BundleStoreError::MissingPackage { .. }
        | BundleStoreError::Manifest { .. } => Some("import or create the bundle again"),
        BundleStoreError::WrongHash { .. } | BundleStoreError::WrongLength { .. } => {
            Some("the file is not the one that was signed or indexed: use another source")
        }
        BundleStoreError::Busy => Some("wait until it has ended"),
        BundleStoreError::Read { .. }
        | BundleStoreError::Write { .. }
        | BundleStoreError::Receive { .. } => None,
    }
}

fn fetch_hint(err: &FetchError) -> Option<&'static str> {
    match err {
        FetchError::Unreachable { .. }
        | FetchError::TimedOut { .. }
        | FetchError::Broken { .. } => {
            Some("try again, or use a mirror: a folder or another `http://` URL")
        }
        FetchError::NotFound { .. } => Some(
            "the repository does not have this file, or was updated meanwhile: check the URL, and try again",
        ),
        FetchError::Https { .. } => {
            Some("use `http://` or a folder: signatures and SHA-256 protect the content")
        }
        FetchError::Url { .. } => Some("name a folder that exists, or an `http://` URL"),
        FetchError::PathEscape { .. }
        | FetchError::Status { .. }
        | FetchError::TooLong { .. }
        | FetchError::Io { .. } => None,
    }
}

pub(super) fn create(err: CreateError) -> anyhow::Error {
    let hint = match &err {
        CreateError::Fetch(err) => fetch_hint(err),
        CreateError::Store(err) => store_hint(err),
        CreateError::Closure(_) => {
            Some("name more sources with --apt or --dnf, or other packages with --package")
        }
        CreateError::Bundle(_) => Some("a role that is wrong can be set with --role NAME=ROLE"),
        CreateError::IndexHash { .. } => Some("try again when the repository is complete"),
        CreateError::SeveralVersions { .. } => Some("leave one version in the folder"),
        _ => None,
    };
    hinted(err, "failed to create the bundle", hint)
}

pub(super) fn import(err: ImportError) -> anyhow::Error {
    let hint = match &err {
        ImportError::Trust(err) => Some(trust_hint(err)),
        ImportError::Fetch(err) => fetch_hint(err),
        ImportError::Store(err) => store_hint(err),
        ImportError::Root { .. } => {
            Some("name the repository's root.json with --root; get it from those who sign")
        }
        ImportError::StoredRoot { .. } => {
            Some("if you now trust the root of another repository, use a new store")
        }
        ImportError::NotSigned { .. } => Some("`--list` shows the signed bundles"),
        ImportError::EndlessRoots { .. }
        | ImportError::Manifest { .. }
        | ImportError::NotImported { .. } => None,
    };
    hinted(err, "nothing was imported", hint)
}

fn trust_hint(err: &TrustError) -> &'static str {
    match err {
        TrustError::Expired { .. } => {
            "check this machine's clock; otherwise the mirror is stale, or those who sign have to \
             run `farrier bundle sign refresh`"
        }
        TrustError::Rollback { .. } | TrustError::Replaced { .. } => {
            "the mirror is stale or manipulated: use another one, and tell those who sign"
        }
        TrustError::MixAndMatch { .. }
        | TrustError::WrongMetadataHash { .. }
        | TrustError::WrongMetadataLength { .. }
        | TrustError::WrongHash { .. }
        | TrustError::WrongLength { .. } => {
            "the mirror is incomplete or manipulated: copy it again"
        }
        _ => "do not use this repository before those who sign have looked at it",
    }
}

pub(super) fn publish(err: PublishError) -> anyhow::Error {
    let hint = match &err {
        PublishError::Exists { .. } => Some("use `add`, `remove`, `refresh` or `rotate`"),
        PublishError::NoRepository { .. } => Some("`farrier bundle sign init` creates one"),
        PublishError::Trust(TrustError::Threshold { .. }) => {
            Some("name the key files of all roles that sign with --key")
        }
        PublishError::Store(err) => store_hint(err),
        _ => None,
    };
    hinted(err, "nothing was signed", hint)
}

pub(super) fn key(err: KeyFileError) -> anyhow::Error {
    let hint = match &err {
        KeyFileError::LooseMode { .. } => Some("only its owner may access it: `chmod 600 FILE`"),
        KeyFileError::Exists { .. } => Some("a key is never replaced: name another file"),
        _ => None,
    };
    hinted(err, "failed to use a signing key", hint)
}
