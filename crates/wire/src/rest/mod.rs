//! What people and programs say to the server, and hear from it, as JSON under `/api/v1`.
//!
//! Each type tells its own shape ([`Schema`]), from which the server's OpenAPI document is made: what is served and what is
//! written down cannot differ. What is asked for is read strictly, what is answered leniently: a client goes on when a newer
//! server says more.

mod fleet;
mod nodes;
mod problem;
mod reason;
mod requests;
mod schema;
mod schemas;

pub use fleet::{
    DomainFaultList, DomainFaultRow, DomainList, DomainRow, EventPage, EventRow, Exposure,
    FreezeList, FreezeRow, Matrix, MatrixLeftOut, MatrixRow, PolicyView, Support,
};
pub use nodes::{
    ConnectionState, ConnectionView, FindingPage, FindingRow, HoldView, NodeDetail,
    NodeExplanation, NodePage, NodeRow, OrderView, RequestedOrderView, VerificationView,
};
pub use problem::{HintCode, Problem};
pub use reason::{RationaleView, ReasonView};
pub use requests::{
    ArtifactList, ArtifactRow, BoundedText, DiagRequest, Done, EmptyRequest, FreezeRequest,
    HoldRequest, LocationRequest, Me, ProfileName, RangedU32, RepairedRequest, RetireRequest,
    TokenCreated, TokenList, TokenRequest, TokenRow, TuneRequest, UnfreezeRequest, VerifyRequest,
};
pub use schema::{Schema, Schemas};
