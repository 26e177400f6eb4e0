//! Email over SMTP. STARTTLS or TLS is required unless the server is on a loopback address.

use std::error::Error as _;
use std::time::{Duration, SystemTime};

use farrier_fleet::notify::{EmailReceiver, SmtpTls};
use lettre::address::AddressError;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{
    AsyncSmtpConnection, AsyncTokioStream, Certificate, CertificateStore, TlsParameters,
};
use lettre::transport::smtp::commands::{Data, Mail, Rcpt};
use lettre::transport::smtp::extension::ClientId;
use tokio::time::timeout;

use super::key_digest;
use crate::error::{DeliveryError, DeliveryStep};
use crate::folders::ReceiverFiles;
use crate::http;
use crate::receiver_answer::AnswerSecrets;
use crate::secret;
use crate::smtp_stream::SmtpStream;
use crate::template::{self, Markup, TemplateError};
use crate::text::{self, CleanNotification};
use crate::tls;
use crate::url::is_loopback;

/// Deadline of the conversation after the connection is open.
const SMTP_DEADLINE: Duration = Duration::from_secs(60);

/// Deadline of the end of the conversation, after the server has accepted the message.
const QUIT_DEADLINE: Duration = Duration::from_secs(2);

const MECHANISMS: [Mechanism; 2] = [Mechanism::Plain, Mechanism::Login];

/// Why an email cannot be built for a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EmailError {
    #[error("expected `HOST:PORT`, such as `smtp.example:587`")]
    Server,
    #[error(
        "without TLS, the server must be on a loopback address; expected `tls = \"starttls\"` or `tls = \"implicit\"`"
    )]
    NoTls,
    #[error("expected an address such as `farrier@example.org`, in ASCII")]
    Address,
    #[error("expected at least one recipient")]
    NoRecipient,
    #[error("expected `user` and `password` together")]
    Login,
}

impl EmailError {
    /// The key of the receiver that is wrong.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::NoTls => "tls",
            Self::Address => "from, to",
            Self::NoRecipient => "to",
            Self::Login => "password",
        }
    }
}

/// The parsed fields of a receiver.
#[derive(Debug)]
pub(crate) struct Envelope {
    host: String,
    port: u16,
    from: Mailbox,
    to: Vec<Mailbox>,
}

impl Envelope {
    pub(crate) fn new(receiver: &EmailReceiver) -> Result<Self, EmailError> {
        let (host, port) = receiver.server.rsplit_once(':').ok_or(EmailError::Server)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = port.parse().ok().filter(|port| *port > 0).ok_or(EmailError::Server)?;
        if host.is_empty() || host.chars().any(|char| char.is_control() || char.is_whitespace()) {
            return Err(EmailError::Server);
        }
        if receiver.tls == SmtpTls::None && !is_loopback(&host) {
            return Err(EmailError::NoTls);
        }
        if receiver.user.is_some() != receiver.password.is_some() {
            return Err(EmailError::Login);
        }
        let to = receiver.to.iter().map(|text| mailbox(text)).collect::<Result<Vec<_>, _>>()?;
        if to.is_empty() {
            return Err(EmailError::NoRecipient);
        }
        Ok(Self { host, port, from: mailbox(&receiver.from)?, to })
    }
}

fn mailbox(text: &str) -> Result<Mailbox, EmailError> {
    let mailbox: Result<Mailbox, AddressError> = text.parse();
    mailbox.ok().filter(|mailbox| mailbox.email.to_string().is_ascii()).ok_or(EmailError::Address)
}

pub(crate) async fn deliver(
    receiver: &EmailReceiver,
    notification: &CleanNotification,
    files: &ReceiverFiles,
) -> Result<(), DeliveryError> {
    let envelope = Envelope::new(receiver)?;
    let rendered = (receiver.clone(), notification.clone());
    let rendered = template::on_blocking_thread(move || formatted(&rendered.0, &rendered.1)).await;
    let message = rendered?;
    let password = secret::load_any(receiver.password.as_ref(), files).await?;
    let mut secrets = AnswerSecrets::default();
    if let Some(password) = &password {
        secrets.add(password.expose());
    }
    let login = receiver
        .user
        .as_ref()
        .zip(password)
        .map(|(user, password)| Credentials::new(user.clone(), password.expose().to_owned()));
    let tcp = http::connect(&envelope.host, envelope.port).await?;
    let conversation = async {
        let mut connection = open(receiver, &envelope, tcp, &secrets).await?;
        converse(&mut connection, &envelope, login.as_ref(), &secrets, &message).await?;
        Ok::<_, DeliveryError>(connection)
    };
    let slow = |_| DeliveryError::TimedOut { step: DeliveryStep::Smtp, limit: SMTP_DEADLINE };
    let mut connection = timeout(SMTP_DEADLINE, conversation).await.map_err(slow)??;
    // The message is delivered, whatever the server answers now, and whether it does.
    let _ = timeout(QUIT_DEADLINE, connection.quit()).await;
    Ok(())
}

/// Opens the connection, which is encrypted unless `tls` is `none`.
async fn open(
    receiver: &EmailReceiver,
    envelope: &Envelope,
    tcp: tokio::net::TcpStream,
    secrets: &AnswerSecrets,
) -> Result<AsyncSmtpConnection, DeliveryError> {
    let host = &envelope.host;
    let name = hello_name();
    let failed = |err| failure(host, &err, Some(secrets));
    let stream: Box<dyn AsyncTokioStream> = match receiver.tls {
        SmtpTls::Starttls | SmtpTls::None => Box::new(SmtpStream::new(tcp)),
        SmtpTls::Implicit => {
            let roots = tls::load_roots(receiver.ca.as_deref()).await?;
            Box::new(SmtpStream::new(http::handshake(host, tcp, roots).await?))
        }
    };
    let mut connection =
        AsyncSmtpConnection::connect_with_transport(stream, &name).await.map_err(failed)?;
    if receiver.tls == SmtpTls::Starttls {
        if !connection.can_starttls() {
            return Err(DeliveryError::NoStarttls { host: host.clone() });
        }
        let mut parameters =
            TlsParameters::builder(host.clone()).certificate_store(CertificateStore::None);
        for root in tls::load_roots(receiver.ca.as_deref()).await? {
            let root = Certificate::from_der(root.as_ref().to_vec()).map_err(failed)?;
            parameters = parameters.add_root_certificate(root);
        }
        let parameters = parameters.build().map_err(failed)?;
        connection.starttls(parameters, &name).await.map_err(failed)?;
    }
    Ok(connection)
}

/// Sends the message to all recipients that the server accepts. If it rejects one, the others get
/// the message, and the delivery has failed.
async fn converse(
    connection: &mut AsyncSmtpConnection,
    envelope: &Envelope,
    login: Option<&Credentials>,
    secrets: &AnswerSecrets,
    message: &[u8],
) -> Result<(), DeliveryError> {
    let host = &envelope.host;
    if let Some(login) = login {
        if connection.server_info().get_auth_mechanism(&MECHANISMS).is_none() {
            return Err(DeliveryError::NoAuth { host: host.clone() });
        }
        // A server could repeat the password in its reply, in whatever encoding it was sent.
        let refused = |err| failure(host, &err, None);
        connection.auth(&MECHANISMS, login).await.map_err(refused)?;
    }
    let failed = |err| failure(host, &err, Some(secrets));
    let from = Some(envelope.from.email.clone());
    connection.command(Mail::new(from, Vec::new())).await.map_err(failed)?;
    let mut rejected = None;
    let mut accepted = 0;
    for to in &envelope.to {
        match connection.command(Rcpt::new(to.email.clone(), Vec::new())).await {
            Ok(_) => accepted += 1,
            Err(err) => {
                let err = failed(err);
                // A temporary rejection is repeated, so it matters more than a permanent one.
                rejected = rejected.filter(DeliveryError::is_retryable).or(Some(err));
            }
        }
    }
    if accepted > 0 {
        connection.command(Data).await.map_err(failed)?;
        connection.message(message).await.map_err(failed)?;
    }
    rejected.map_or(Ok(()), Err)
}

pub(crate) fn formatted(
    receiver: &EmailReceiver,
    notification: &CleanNotification,
) -> Result<Vec<u8>, DeliveryError> {
    Ok(message(receiver, &Envelope::new(receiver)?, notification)?.formatted())
}

/// The message. It is the same for each delivery of a notification.
fn message(
    receiver: &EmailReceiver,
    envelope: &Envelope,
    notification: &CleanNotification,
) -> Result<Message, DeliveryError> {
    let domain = envelope.from.email.domain();
    let id = |key: &str| format!("<{}@{domain}>", key_digest(key));
    // No message has this id, but clients group messages that refer to the same one.
    let thread = id(&notification.group);
    let mut builder = Message::builder()
        .from(envelope.from.clone())
        .date(SystemTime::from(notification.at))
        .message_id(Some(id(&notification.key)))
        .in_reply_to(thread.clone())
        .references(thread)
        .subject(text::subject(notification))
        .raw_header(HeaderValue::new(
            HeaderName::new_from_ascii_str("Auto-Submitted"),
            "auto-generated".to_owned(),
        ))
        .header(ContentType::TEXT_PLAIN);
    for to in &envelope.to {
        builder = builder.to(to.clone());
    }
    let invalid = |_| DeliveryError::Invalid { what: "the email" };
    builder.body(body(receiver, notification)?).map_err(invalid)
}

pub(crate) fn body(
    receiver: &EmailReceiver,
    notification: &CleanNotification,
) -> Result<String, TemplateError> {
    match &receiver.template {
        Some(source) => template::render(source, Markup::Plain, notification),
        None => Ok(text::body(notification)),
    }
}

/// The name of this machine, if SMTP accepts it.
fn hello_name() -> ClientId {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_str().unwrap_or_default();
    let allowed = |char: char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-');
    if name.is_empty() || !name.chars().all(allowed) {
        return ClientId::default();
    }
    ClientId::Domain(name.to_owned())
}

/// The error of rustls, which `lettre` wraps in an error of the connection.
fn tls_error(err: &smtp::Error) -> Option<&rustls::Error> {
    let mut cause = err.source();
    while let Some(err) = cause {
        let inner = err.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(tls) = inner.and_then(|inner| inner.downcast_ref()) {
            return Some(tls);
        }
        cause = err.source();
    }
    None
}

/// The error shows the reply of the server if there are `secrets` to search it for.
fn failure(host: &str, err: &smtp::Error, secrets: Option<&AnswerSecrets>) -> DeliveryError {
    if let Some(tls) = tls_error(err) {
        let err = std::io::Error::other(tls.clone());
        return DeliveryError::Tls { host: host.to_owned(), err };
    }
    let reply = secrets.zip(err.source()).map(|(secrets, err)| secrets.shown(&err.to_string()));
    DeliveryError::Smtp {
        host: host.to_owned(),
        code: err.status().map(u16::from),
        is_permanent: err.is_permanent() || err.is_client(),
        reply: reply.unwrap_or_default(),
    }
}
