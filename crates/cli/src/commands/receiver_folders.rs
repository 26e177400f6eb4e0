//! The flags that name the folders of the programs and secrets of receivers.

use std::path::{Path, PathBuf};

use farrier_notify::ReceiverFolders;

/// In this variable, systemd names the folder with the credentials of a service.
const CREDENTIALS_FOLDER: &str = "CREDENTIALS_DIRECTORY";

/// The same flags for the server and for the check of a policy that it will get.
#[derive(Debug, clap::Args)]
pub(crate) struct ReceiverFolderArgs {
    /// Folder with the programs that `command` receivers may run; repeatable
    /// [default: /etc/farrier/commands]
    #[arg(long, value_name = "FOLDER", value_parser = absolute)]
    notify_commands: Vec<PathBuf>,
    /// Folder with the secrets that receivers may read; repeatable
    /// [default: /etc/farrier/secrets, and systemd's credentials of the service]
    #[arg(long, value_name = "FOLDER", value_parser = absolute)]
    notify_secrets: Vec<PathBuf>,
}

impl ReceiverFolderArgs {
    pub(crate) fn folders(&self) -> ReceiverFolders {
        self.folders_with(std::env::var_os(CREDENTIALS_FOLDER).map(PathBuf::from))
    }

    /// Whether the command line names folders.
    pub(crate) fn are_given(&self) -> bool {
        !self.notify_commands.is_empty() || !self.notify_secrets.is_empty()
    }

    fn folders_with(&self, credentials: Option<PathBuf>) -> ReceiverFolders {
        let mut folders = ReceiverFolders::default();
        folders.secrets.extend(credentials.filter(|folder| folder.is_absolute()));
        if !self.notify_commands.is_empty() {
            folders.commands.clone_from(&self.notify_commands);
        }
        if !self.notify_secrets.is_empty() {
            folders.secrets.clone_from(&self.notify_secrets);
        }
        folders
    }
}

/// The paths in a policy are absolute, so they could not be in a relative folder.
fn absolute(text: &str) -> Result<PathBuf, String> {
    let is_plain = Path::new(text).is_absolute() && !text.split('/').any(|part| part == "..");
    if is_plain { Ok(PathBuf::from(text)) } else { Err("expected an absolute path".to_owned()) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        folders: ReceiverFolderArgs,
    }

    fn parse(flags: &[&str]) -> Result<ReceiverFolders, clap::Error> {
        let flags = Flags::try_parse_from([&["farrier"], flags].concat())?;
        Ok(flags.folders.folders_with(Some(PathBuf::from("/run/credentials/farrier"))))
    }

    fn paths(paths: &[&str]) -> Vec<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn flags_replace_the_defaults_and_may_be_repeated() {
        let folders = parse(&[]).unwrap();
        assert_eq!(folders.commands, paths(&["/etc/farrier/commands"]));
        assert_eq!(folders.secrets, paths(&["/etc/farrier/secrets", "/run/credentials/farrier"]));
        let flags = ["--notify-secrets", "/a", "--notify-secrets", "/b", "--notify-commands", "/c"];
        let folders = parse(&flags).unwrap();
        assert_eq!(folders.commands, paths(&["/c"]));
        assert_eq!(folders.secrets, paths(&["/a", "/b"]));
    }

    #[test]
    fn a_folder_is_an_absolute_path() {
        for folder in ["relative", "", "/etc/../tmp"] {
            parse(&["--notify-secrets", folder]).unwrap_err();
            parse(&["--notify-commands", folder]).unwrap_err();
        }
    }
}
