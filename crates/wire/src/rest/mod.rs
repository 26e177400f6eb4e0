//! What people and programs say to the server, and hear from it, as JSON under `/api/v1`.
//!
//! Each type tells its own shape ([`Shape`]), from which the server's OpenAPI document is made: what is served and what is
//! written down cannot differ. What is asked for is read strictly, what is answered leniently: a client goes on when a newer
//! server says more.

mod asks;
mod fleet;
mod nodes;
mod problem;
mod reason;
mod shape;
mod shapes;

pub use asks::{
    ArtifactList, ArtifactRow, Between, DiagAsk, Done, FreezeAsk, HoldAsk, Me, NothingAsk,
    PlaceAsk, ProfileName, RepairedAsk, RetireAsk, ThawAsk, TokenAsk, TokenList, TokenMade,
    TokenRow, TuneAsk, VerifyAsk, Words,
};
pub use fleet::{
    BlameList, BlameRow, DomainList, DomainRow, EventPage, EventRow, Exposure, FreezeList,
    FreezeRow, Matrix, MatrixLeftOut, MatrixRow, PolicyView, Support,
};
pub use nodes::{
    ConnectionState, ConnectionView, ErrandView, Explained, FindingPage, FindingRow, HoldView,
    NodeDetail, NodePage, NodeRow, OrderView, ProofView,
};
pub use problem::{HintCode, Problem};
pub use reason::{ReasonView, WhyView};
pub use shape::{Shape, Shapes};
