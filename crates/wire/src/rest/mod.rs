//! JSON types of the REST API under `/api/v1`.
//!
//! Each type provides its own [`Schema`]. The server generates its OpenAPI document from these
//! schemas, so the document cannot diverge from the code. Requests are parsed strictly. Responses
//! are parsed leniently, so that a client keeps working with a newer server that adds fields.

mod fleet;
mod nodes;
mod notify;
mod policy_schemas;
mod problem;
mod reason;
mod requests;
mod schema;
mod schemas;

pub use fleet::{
    DomainFaultList, DomainFaultRow, DomainList, DomainRow, EventPage, EventRow, Exposure,
    FreezeList, FreezeRow, Matrix, MatrixOmitted, MatrixRow, PolicyView, Support,
};
pub use nodes::{
    AttentionView, ComponentView, ConnectionState, ConnectionView, CoverageGapView, FindingGroup,
    FindingPage, FindingRow, GroupedFinding, HistoryRow, HoldView, NextStepView, NodeDetail,
    NodeExplanation, NodePage, NodeRow, OrderView, RequestedOrderView, UnknownFindingsRow,
    VerificationView,
};
pub use notify::{
    AcknowledgeRequest, CodeText, DeliveryErrorView, MuteList, MuteRequest, MuteRow,
    NotificationDatabaseFailure, NotificationGap, NotificationQueue, NotificationTestRequest,
    NotificationTestResult, QueuedNotification, QueuedNotificationsChanged,
    QueuedNotificationsRequest, ReceiverProblemList, ReceiverProblemView, ReceiverQueue,
    UnmuteRequest,
};
pub use problem::{HintCode, Problem};
pub use reason::{RationaleView, ReasonView};
pub use requests::{
    ArtifactList, ArtifactRow, BoundedText, DiagRequest, DomainRepairedRequest, Done, EmptyRequest,
    FreezeRequest, HoldRequest, LocationRequest, Me, ProfileName, RangedU32, RepairedRequest,
    RetireRequest, TokenCreated, TokenList, TokenRequest, TokenRow, TuneRequest, UnfreezeRequest,
    VerifyRequest,
};
pub use schema::{Schema, Schemas};
