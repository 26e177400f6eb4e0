//! Commands.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use farrier_fleet::notify::{CommandReceiver, Notification, Receiver};
use farrier_notify::{
    CommandError, DeliveryError, DeliveryStep, FolderError, ReceiverFiles, ReceiverFolders, Sender,
};

use crate::sample::notification;

/// A command that runs a shell script. `$1` is the folder.
fn script(folder: &Path, text: &str, timeout_s: u32) -> Receiver {
    let argv = ["/bin/sh", "-c", text, "sh", folder.to_str().unwrap()];
    Receiver::Command(CommandReceiver { argv: argv.map(str::to_owned).to_vec(), timeout_s })
}

async fn deliver(receiver: &Receiver) -> Result<(), DeliveryError> {
    Sender::unrestricted().deliver(receiver, &notification()).await
}

#[tokio::test]
async fn a_command_gets_the_json_and_the_environment_without_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("page");
    let text =
        "#!/bin/sh\ncat > \"$1/stdin\"; env > \"$1/env\"; printf %s \"$2\" > \"$1/argument\"\n";
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let argument = "$(touch /tmp/x); `id` *";
    let argv = [program.to_str().unwrap(), folder.path().to_str().unwrap(), argument];
    let argv = argv.map(str::to_owned).to_vec();
    let receiver = Receiver::Command(CommandReceiver { argv, timeout_s: 300 });
    assert!(farrier_notify::check(&receiver, &ReceiverFiles::Any).is_empty());
    deliver(&receiver).await.unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let received: Notification = serde_json::from_str(&read("stdin")).unwrap();
    assert_eq!(received.key, notification().key);
    assert_eq!(read("argument"), argument);
    let environment = read("env");
    for line in [
        "FARRIER_STATUS=firing",
        "FARRIER_SEVERITY=fatal",
        "FARRIER_CODE=gpu.xid",
        "FARRIER_NODES=gpu-7",
        "FARRIER_KEY=gpu-7/gpu.xid/1",
        "FARRIER_SUBJECT=FATAL gpu-7 GPU 3: Xid 79: the GPU is not reachable over PCIe",
    ] {
        assert!(environment.lines().any(|found| found == line), "{line}:\n{environment}");
    }
    // Nothing of the sender's own environment, which may have secrets.
    assert!(!environment.contains("CARGO"), "{environment}");
}

#[tokio::test]
async fn a_failed_command_shows_its_exit_status_and_the_start_of_stderr() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = script(folder.path(), "echo ignored; printf 'no\\nroute\\033' >&2; exit 3", 300);
    let err = deliver(&receiver).await.unwrap_err();
    assert!(err.is_retryable());
    assert_eq!(err.to_string(), "`/bin/sh` ended with exit status: 3: `no route`");
}

#[tokio::test]
async fn a_command_that_never_ends_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let text = "mkfifo \"$1/fifo\"; cat \"$1/fifo\" & echo $! > \"$1/child.part\"; \
                mv \"$1/child.part\" \"$1/child\"; wait";
    let err = deliver(&script(folder.path(), text, 2)).await.unwrap_err();
    assert!(matches!(err, DeliveryError::TimedOut { step: DeliveryStep::Command, .. }), "{err}");
    assert!(err.is_retryable());
    // On a busy machine the shell may be killed before it starts the child.
    if let Ok(pid) = std::fs::read_to_string(folder.path().join("child")) {
        let stat = format!("/proc/{}/stat", pid.trim());
        // A killed process whose parent has ended is gone, or a zombie until init reaps it.
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_command_that_floods_its_output_does_not_block_or_fill_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let text = "head -c 50000000 /dev/zero | tr '\\0' x; head -c 5000000 /dev/zero | tr '\\0' y >&2; exit 1";
    let err = deliver(&script(folder.path(), text, 300)).await.unwrap_err();
    let text = err.to_string();
    assert!(text.len() < 400 && text.contains("yyyy"), "{text}");
}

#[tokio::test]
async fn a_process_that_a_command_leaves_behind_does_not_delay_it() {
    let folder = tempfile::tempdir().unwrap();
    let text = "mkfifo \"$1/fifo\"; cat \"$1/fifo\" & echo $! > \"$1/child\"; exit 0";
    deliver(&script(folder.path(), text, 300)).await.unwrap();
    // It still holds the output open; end it.
    let pid = std::fs::read_to_string(folder.path().join("child")).unwrap();
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_command_that_does_not_read_its_input_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    deliver(&script(folder.path(), "exec < /dev/null; exit 0", 300)).await.unwrap();
}

/// It may be missing only for a while, such as while it is replaced. Then it gets all that waits.
#[tokio::test]
async fn a_program_that_cannot_start_is_retried() {
    let receiver = |program: &str| {
        let argv = vec![program.to_owned()];
        Receiver::Command(CommandReceiver { argv, timeout_s: 30 })
    };
    for program in ["/nonexistent/page", "/etc/passwd"] {
        let receiver = receiver(program);
        let err = deliver(&receiver).await.unwrap_err();
        assert!(matches!(err, DeliveryError::Command(CommandError::Start { .. })), "{err}");
        assert!(err.is_retryable() && !err.reached_receiver(), "{err}");
        let problems = farrier_notify::check(&receiver, &ReceiverFiles::Any);
        assert!(problems.len() == 1 && problems[0].key == "argv", "{problems:?}");
        assert!(problems[0].is_error() && problems[0].is_about_files(), "{problems:?}");
    }
    let receiver = receiver("page");
    let err = deliver(&receiver).await.unwrap_err();
    assert!(matches!(err, DeliveryError::Command(CommandError::NotAbsolute)), "{err}");
    assert!(!err.is_retryable(), "{err}");
    let problems = farrier_notify::check(&receiver, &ReceiverFiles::Any);
    assert_eq!(problems.iter().map(|problem| problem.key).collect::<Vec<_>>(), ["argv"]);
}

/// It would stop all later messages of the receiver.
#[tokio::test]
async fn arguments_that_are_too_long_are_not_retried() {
    let argv = vec!["/bin/true".to_owned(), "a".repeat(4 << 20)];
    let err = deliver(&Receiver::Command(CommandReceiver { argv, timeout_s: 30 })).await;
    let err = err.unwrap_err();
    assert!(matches!(err, DeliveryError::Command(CommandError::Start { .. })), "{err}");
    assert!(!err.is_retryable(), "{err}");
}

/// A folder that is not mounted yet.
#[tokio::test]
async fn a_program_whose_folder_comes_later_is_retried() {
    let folder = tempfile::tempdir().unwrap();
    let commands = folder.path().join("commands");
    let page = commands.join("page");
    let sender =
        Sender::within(ReceiverFolders { commands: vec![commands.clone()], secrets: Vec::new() });
    let argv = vec![page.to_str().unwrap().to_owned()];
    let receiver = Receiver::Command(CommandReceiver { argv, timeout_s: 300 });
    let err = sender.deliver(&receiver, &notification()).await.unwrap_err();
    assert!(matches!(err, DeliveryError::Command(CommandError::Start { .. })), "{err}");
    assert!(err.is_retryable() && !err.reached_receiver(), "{err}");
    std::fs::create_dir(&commands).unwrap();
    std::fs::set_permissions(&commands, std::fs::Permissions::from_mode(0o755)).unwrap();
    write_script(&page, "#!/bin/sh\nexit 0\n");
    sender.deliver(&receiver, &notification()).await.unwrap();
}

#[tokio::test]
async fn an_argument_with_nul_is_refused() {
    let argv = vec!["/bin/true".to_owned(), "a\0b".to_owned()];
    let receiver = Receiver::Command(CommandReceiver { argv, timeout_s: 30 });
    let err = deliver(&receiver).await.unwrap_err();
    assert!(matches!(err, DeliveryError::Command(CommandError::Nul)) && !err.is_retryable());
    let problems = farrier_notify::check(&receiver, &ReceiverFiles::Any);
    assert_eq!(problems.iter().map(|problem| problem.key).collect::<Vec<_>>(), ["argv"]);
}

/// Writes a script that anybody may run.
fn write_script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn only_programs_in_the_folder_are_started() {
    let folder = tempfile::tempdir().unwrap();
    let commands = folder.path().join("commands");
    std::fs::create_dir(&commands).unwrap();
    std::fs::set_permissions(&commands, std::fs::Permissions::from_mode(0o755)).unwrap();
    let text = "#!/bin/sh\necho started >> \"$1\"\n";
    write_script(&commands.join("page"), text);
    write_script(&folder.path().join("other"), text);
    std::os::unix::fs::symlink("../other", commands.join("link")).unwrap();
    write_script(&commands.join("loose"), text);
    let loose = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(commands.join("loose"), loose).unwrap();
    let folders = ReceiverFolders { commands: vec![commands.clone()], secrets: Vec::new() };
    let files = ReceiverFiles::within(folders.clone());
    let sender = Sender::within(folders);
    let started = folder.path().join("started");
    let receiver = |program: &Path| {
        let argv = [program, &started].map(|path| path.to_str().unwrap().to_owned()).to_vec();
        Receiver::Command(CommandReceiver { argv, timeout_s: 300 })
    };
    let refused = [folder.path().join("other"), commands.join("link"), commands.join("loose")];
    for program in refused {
        let receiver = receiver(&program);
        let err = sender.deliver(&receiver, &notification()).await.unwrap_err();
        assert!(matches!(err, DeliveryError::Folder(_)), "{program:?}: {err}");
        assert!(err.is_retryable() && !err.reached_receiver(), "it waits for the administrator");
        let problems = farrier_notify::check(&receiver, &files);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].key == "argv" && problems[0].is_error(), "{problems:?}");
        let is_outside = matches!(err, DeliveryError::Folder(FolderError::Outside { .. }));
        assert_eq!(problems[0].is_about_files(), !is_outside, "{program:?}");
    }
    assert!(!started.exists());
    let allowed = receiver(&commands.join("page"));
    assert!(farrier_notify::check(&allowed, &files).is_empty());
    sender.deliver(&allowed, &notification()).await.unwrap();
    assert_eq!(std::fs::read_to_string(&started).unwrap(), "started\n");
}
