use std::cell::Cell;

use super::*;

fn redacted(text: &str) -> (String, u64) {
    let (bytes, count) = redact(text.as_bytes(), &|| true).unwrap();
    (String::from_utf8(bytes).unwrap(), count)
}

#[test]
fn values_are_redacted_and_their_names_stay() {
    let cases = [
        ("WANDB_API_KEY=0123abcd run.py\n", "WANDB_API_KEY=[redacted] run.py\n"),
        (r#"{"password": "p w, x", "a": 1}"#, r#"{"password": [redacted], "a": 1}"#),
        (r#"{"t":"{\"password\": \"p w\"}"}"#, r#"{"t":"{\"password\": [redacted]}"}"#),
        (r#"{"t":"{\"secret\": \"a\\\"b\"}"}"#, r#"{"t":"{\"secret\": [redacted]}"}"#),
        (r#"{"token":12,"a":1}"#, r#"{"token":[redacted],"a":1}"#),
        (r#"{"secrets":{"a":["b"],"c":"d"},"e":1}"#, r#"{"secrets":[redacted],"e":1}"#),
        (r#"{"log":"a\npass=b c","e":1}"#, r#"{"log":"a\npass=[redacted] c","e":1}"#),
        (r#"{"name":"DB_PASSWORD","value":"a"}"#, r#"{"name":"DB_PASSWORD","value":[redacted]}"#),
        (r#"["run","--token","a","-x"]"#, r#"["run","--token",[redacted],"-x"]"#),
        ("<password>a</password>", "<password>[redacted]"),
        (r"PASSWORD='it'\''s a b' run", "PASSWORD=[redacted] run"),
        ("train.py --hub-token abc --lr 1", "train.py --hub-token [redacted] --lr 1"),
        (
            "\x1b[3mtoken\x1b[0m\x1b[2m=\x1b[0mabc d",
            "\x1b[3mtoken\x1b[0m\x1b[2m=\x1b[0m[redacted] d",
        ),
        ("Authorization: Bearer abcdefgh.1", "Authorization: [redacted]"),
        ("Authorization: Token abc", "Authorization: [redacted]"),
        (
            "authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature=c",
            "authorization: [redacted]",
        ),
        ("Cookie: a=1; session=SECRET", "Cookie: [redacted]"),
        (r#"curl -H 'Cookie: a="b"; c' x"#, "curl -H 'Cookie: [redacted]' x"),
        (r#"{"cookie":["a","b"],"c":1}"#, r#"{"cookie":[redacted],"c":1}"#),
        (
            r#"{"log":"got Cookie: a={\"b\":\"c\"}; d","e":1}"#,
            r#"{"log":"got Cookie: [redacted]","e":1}"#,
        ),
        ("got bearer abcdefgh12 from", "got bearer [redacted] from"),
        ("get https://ann:p@w@host/x", "get https://[redacted]@host/x"),
        (
            "pip install git+https://a:b@host/x@main",
            "pip install git+https://[redacted]@host/x@main",
        ),
        ("MYSQL_PWD=x1 mysqldump", "MYSQL_PWD=[redacted] mysqldump"),
        ("smtp pass: x1, port 25", "smtp pass: [redacted], port 25"),
        ("sshpass -p x1 ssh host", "sshpass -p [redacted] ssh host"),
        ("ipmitool -H bmc -U root -P x1 sel", "ipmitool -H bmc -U root -P [redacted] sel"),
        ("curl -s -u ann:x1 https://host", "curl -s -u [redacted] https://host"),
        ("curl\0-u\0ann:x1\0https://host", "curl\0-u\0[redacted]\0https://host"),
        // The rest is removed too: it may belong to the key.
        ("AccountKey=abc==;End", "AccountKey=[redacted]"),
        ("GET /x?a=1&X-Amz-Signature=abc&b=2", "GET /x?a=1&X-Amz-Signature=[redacted]&b=2"),
        ("key AKIAABCDEFGHIJKLMNOP end", "key [redacted] end"),
        ("hf_abcdefghijklmnopqrstuvwx", "[redacted]"),
        ("nvapi-abcdefghijklmnopqrstuvwx", "[redacted]"),
        ("glpat-abcdefghijklmnopqrst", "[redacted]"),
        ("fjoin_abcdefghijklmnopqrstuvwxyz0123456789", "[redacted]"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0.abcdef", "[redacted]"),
        ("key sk-abcdefghijklmnopqrstuvwx", "key [redacted]"),
        ("root:$6$abcdefgh$ijklmnopqrstuvwxyz:19000", "root:[redacted]:19000"),
    ];
    for (text, expected) in cases {
        let (got, count) = redacted(text);
        assert_eq!(got, expected);
        assert_eq!(count, 1, "{text}");
    }
}

const PLANTED: &[&str] = &[
    "DB_PASS=LEAKhunter01",
    "SECRET_KEY=LEAK02abcdef",
    "AWS_SECRET_KEY=LEAK03abcdef",
    r#"DJANGO_SECRET_KEY: "LEAK04abcdef""#,
    r#"curl -H "X-Api-Key: LEAK" -u ann:LEAK05pw https://host/x"#,
    r#"Cookie: sid="LEAK06"; path=/"#,
    r#"Authorization: Digest username="ann", response="LEAK07digest""#,
    r#"password="LEAK08unterminated"#,
    "password=abc,LEAK09tail",
    "password=abc;LEAK10tail",
    r#"{"password":"abc\"LEAK11tail"}"#,
    "password => 'LEAK12'",
    "-password LEAK13 (java style)",
    "postgres://u:pa/LEAK14@host/db",
    r#""passwords":["LEAK15a","LEAK15b"]"#,
    "sk_live_LEAK16abcdefghijklmnopqrstu",
    "npm_LEAK17abcdefghijklmnopqrstuvwxyz0123",
    "hvs.LEAK18abcdefghijklmnopqrstuvwxyz",
    "ya29.LEAK19abcdefghijklmnopqrstuvwxyz",
    "encryption_key=LEAK20",
    "SLURM_JWT=LEAK21",
    "aws_session_token = LEAK22",
    "Authorization:\n  Bearer LEAK23",
    r#""API Key": "LEAK24""#,
    "password is LEAK25",
    "mysql -pLEAK26 -u root",
    "--password=LEAK27 --x",
    "https://ann:LEAK28@host/x",
    r#"{"auths":{"nvcr.io":{"auth":"LEAK29ZG9ja2VyOnBhc3M="}}}"#,
    "NGC_API_KEY=LEAK30",
    "PASSWD=LEAK31",
    "user_password_hash=LEAK32",
    "X-Auth-Token: LEAK33",
    "SecretKey=LEAK34",
    "clientSecretValue=LEAK35",
    "password:\tLEAK36",
    "export TOKEN='LEAK37",
    "PGPASSWORD=LEAK38 psql",
    "access token: LEAK39",
    "http_proxy=http://ann:LEAK40@proxy:3128",
    r#"secret_access_key="LEAK41""#,
    "--set env.PASSWORD=LEAK42",
    "wandb login LEAK43aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "huggingface-cli login --token LEAK44",
    "docker login -u ann -p LEAK45 nvcr.io",
    "ssh-key: LEAK46",
    "basic_auth: LEAK47",
    "SAS: https://a.blob/x?sv=1&sig=LEAK48&se=2",
    "passphrase LEAK49",
    "echo LEAK50 | sudo -S x",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2\n\n\
             LEAK51QOYBGNabcdefABCDEF\n=abcd\n-----END PGP PRIVATE KEY BLOCK-----",
    "Nov 18 01:02:03 host app[1]: -----BEGIN PRIVATE KEY-----\n\
             Nov 18 01:02:03 host app[1]: LEAK52MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n\
             Nov 18 01:02:03 host app[1]: -----END PRIVATE KEY-----",
    "[   12.345678] -----BEGIN RSA PRIVATE KEY-----\n\
             [   12.345679] LEAK53MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n\
             [   12.345680] -----END RSA PRIVATE KEY-----",
    "+-----BEGIN EC PRIVATE KEY-----\n+LEAK54MHcCAQEE\n+-----END EC PRIVATE KEY-----",
    "PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 1\nLEAK55AAAAB3Nz\nPrivate-MAC: LEAK55",
    "token: LEAK56\u{a0} x",
    "train --password\0LEAK59\0--lr",
    "password: |\n  LEAK60",
    "passwd LEAK61",
    "JWT_KEY=LEAK62",
    "signing-key=LEAK63",
    "wandb_key=LEAK64",
    "OPENAI_API_KEYS=LEAK65",
    r#""token": null, "secretString":"LEAK66""#,
    "TOKEN_FILE_CONTENT=LEAK67",
    "my.secret.value=LEAK68",
    "kubectl create secret generic x --from-literal=key=LEAK69",
    "AZURE_CLIENT_SECRET LEAK70",
    "vllm serve m --api-key LEAK-abc",
    r#"["vllm","--api-key","s3cr3t-LEAK"]"#,
    "vllm\0--api-key\0LEAK\0--port",
    "--access-key LEAK",
    "--account-key LEAK",
    "train --wandb-api-key LEAK",
    "WANDB_API_KEY LEAK71",
    "API_TOKENS=9f86d0LEAK72",
    r#""auth_tokens": ["9LEAK"]"#,
    "GITHUB_TOKEN_RO=LEAK73",
    "HF_TOKEN_READ=LEAK74",
    "API_KEY_OPENAI=LEAK75",
    "DB_PASS_PROD=LEAK76",
    "SSHPASS=LEAK sshpass -e ssh host",
    "BMCPASS: LEAK",
    "IPMIPASS=LEAK",
    "PGPASS=LEAK",
    r#""ADMINPASS": "LEAK""#,
    "dump --db-pass LEAK --all",
    r#"["dump","--db-pass","LEAK"]"#,
];

#[test]
fn planted_secrets_are_redacted() {
    for text in PLANTED {
        let (got, _) = redacted(text);
        assert!(!got.contains("LEAK"), "{got}");
    }
    // Also as one file: redacting one line must not hide or expose the next.
    let (got, count) = redacted(&PLANTED.join("\n"));
    assert!(!got.contains("LEAK"), "{got}");
    assert!(count > PLANTED.len() as u64 && got.lines().count() > PLANTED.len(), "{got}");
}

#[test]
fn known_limitations() {
    let passes = [
        // A key with neither an end marker nor lines of base64.
        "-----BEGIN PRIVATE KEY----- MIIE\nLEAK57MIIEvQ with space",
        // A name cut in two.
        "pass\0word=LEAK58",
        // A value on its own line.
        "password:\nLEAK",
        // A word after a mere space.
        "the password LEAK",
        // Looks like a host and its port.
        "postgres://u:12/LEAK@host/db",
    ];
    for text in passes {
        assert!(redacted(text).0.contains("LEAK"), "now redacted: {text}");
    }
}

#[test]
fn a_private_key_is_redacted_and_the_text_after_it_stays() {
    let text = "a\n-----BEGIN EC PRIVATE KEY-----\nMHc\nAbc\n-----END EC PRIVATE KEY-----\nb\n";
    assert_eq!(redacted(text), ("a\n[redacted private key]\nb\n".to_owned(), 1));
    // A key truncated by a limit is hidden too.
    let cut = "-----BEGIN PRIVATE KEY-----\nMHc\n";
    assert_eq!(redacted(cut), ("[redacted private key]\n".to_owned(), 1));
    let cut = "[1.0] -----BEGIN PRIVATE KEY-----\n[1.1] MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nb c\n";
    assert_eq!(redacted(cut), ("[redacted private key]\nb c\n".to_owned(), 1));
    let cut = "b c\nMIIEvQIBADANBgkqhkiG9w\nAbc=\n-----END PRIVATE KEY-----\n";
    assert_eq!(redacted(cut), ("b c\n[redacted private key]\n".to_owned(), 1));
    // In a log each line begins with a timestamp. The last line of the key is short.
    let end = "[1.4] -----END PRIVATE KEY-----\n";
    let cut = format!("b c.\n[1.2] MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n[1.3] Abc=\n{end}");
    assert_eq!(redacted(&cut), ("b c.\n[redacted private key]\n".to_owned(), 1));
    let cut =
        format!("b c.\n[1.1] MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n[1.2] Abc=\n[1.3] =abcd\n{end}");
    assert_eq!(redacted(&cut), ("b c.\n[redacted private key]\n".to_owned(), 1));
    let mentioned = "no -----BEGIN RSA PRIVATE KEY in it\nwhat else was wrong\n";
    assert_eq!(redacted(mentioned).0, "[redacted private key]\nwhat else was wrong\n");
    // After a line that only mentions a key, the end marker of another key does not count.
    let two = format!("a -----BEGIN PRIVATE KEY----- was\nb c\n{text}");
    assert_eq!(redacted(&two).0, "[redacted private key]\nb c\na\n[redacted private key]\nb\n");
}

#[test]
fn diagnostic_text_stays() {
    let text = r#"NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build
NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:1860)
nvidia: module verification failed: signature and/or required key missing - tainting kernel
nvidia-nvlink: Nvlink Core is being initialized, major device number 237
options nvidia NVreg_RestrictProfilingToAdminUsers=0 NVreg_EnableGpuFirmware=1
NVreg_RegistryDwords="PerfLevelSrc=0x2222;RMSecBusResetEnable=1"
    Product Name                          : NVIDIA H200
    Serial Number                         : 1650522000000
    GPU UUID                              : GPU-5f2a6b1c-0d3e-4f5a-8b7c-9d0e1f2a3b4c
        Bus Id                            : 00000000:1B:00.0
    Driver Version : 580.95.05
    Persistence Mode                      : Enabled
        SW Power Cap                      : Not Active
        Remapping Failure Occurred        : No
    ECC Mode Bypass: enabled
    L2_BYPASS=on, ATS_BYPASS: enabled
nvidia-smi -pm 1 -pl 700
mlx5_core 0000:3b:00.0: Port module event: module 0, Cable plugged
mlx5_0: local QP operation err, lkey=0x1ff, rkey: 0x2ab, P_Key: 0xffff, bad_pkey_counter: 0
pcieport 0000:00:1c.0: AER: Corrected error message received from 0000:00:1c.0
Key type asymmetric registered
Loaded X.509 cert 'Build time autogenerated kernel key: 5fa2c1d09b'
Initialise system trusted keyrings
dm-crypt: the encryption key is missing, private key not found, --sort-key name --tls-key /etc/a1.pem
keyring: .builtin_trusted_keys, Monkey: 1, hotkey=F1, public_key=abc
audit: type=1701 audit(1.2:3): pid=7 comm="python" exe="/usr/bin/python3" sig=11 res=1
nvme0n1: Device self-test: pass, passed: 3, # Totals: pass:12 fail:0 xfail:0
/dev/disk/by-id/nvme-disk-SAMSUNG_MZQL23T8HCLS_00A07
systemd[1]: Started Forward Password Requests to Wall Directory Watch.
systemd[1]: systemd-ask-password-wall.path: Deactivated successfully.
systemd[1]: nvidia-persistenced.service: Failed to set up credentials: Protocol error
sshd[1]: Failed password for root from 10.0.0.5 port 22 ssh2
sshd[1]: Accepted publickey for ann from 10.0.0.5 port 22 ssh2: RSA SHA256:abcdef
sudo: ann : TTY=pts/0 ; PWD=/home/ann ; USER=root ; COMMAND=/usr/bin/nvidia-smi
slurmd: error: Invalid job credential from 10.0.0.5
train.py --max-tokens 4096 tokens_per_second=12.5 tokenizer=llama tokens=4096 num_tokens: 12
step 12: tokens: 8192, token_count=7, the token is expired, unexpected token in line 3
https://docs.nvidia.com/deploy https://host:8080/x/@scope/y oci://host:5000/img@sha256:ab
token_limit=4096 token_type: access --rsa-key-bits=2048 SSH_KEY_PATH=/etc/a1b2.pem pass_rate: 99.5%
docker run -p 8080:80 -u 1000 nvcr.io/nvidia/pytorch:25.01-py3
{"at":"2026-11-18T05:00:00Z","code":"gpu.xid","key":"Xid 79","fault_key":"a","count":1}
"#;
    assert_eq!(redacted(text), (text.to_owned(), 0));
}

#[test]
fn redaction_stops_when_keep_going_returns_false() {
    // Many lines, and one line of the same length.
    for text in ["a token\n".repeat(CHECK_BYTES / 2), "a token ".repeat(CHECK_BYTES / 2)] {
        let checks = Cell::new(0);
        let until = |limit: usize| {
            checks.set(0);
            redact(text.as_bytes(), &|| {
                checks.set(checks.get() + 1);
                checks.get() < limit
            })
        };
        assert_eq!(until(3), None);
        assert_eq!(checks.get(), 3);
        assert_eq!(until(usize::MAX), Some((text.clone().into_bytes(), 0)));
        assert_eq!(checks.get(), text.len() / CHECK_BYTES);
    }
}
