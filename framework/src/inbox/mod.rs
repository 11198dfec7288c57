//! The inbox: from a delivery to the effect, committed once. One verb a file.

pub(crate) mod apply;
mod attempts;
mod dead;
pub(crate) mod deliver;
mod follow;
pub(crate) mod register;
mod settle;
