//! What each derive writes. Names are written in full, so that nothing in the user's scope can stand in their way; the
//! steps of handling live in the framework's functions, not here.

mod consumer;
mod event;
#[cfg(test)]
mod snapshots;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Generics, Ident, LitStr};

pub(crate) use consumer::consumer;
pub(crate) use event::{command, event};

/// `impl<…> Trait for Type<…> where …`
pub(crate) fn on(generics: &Generics, ident: &Ident, r#trait: &TokenStream) -> TokenStream {
    let (parameters, arguments, conditions) = generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #parameters #r#trait for #ident #arguments #conditions
    }
}

/// The name that is given. One that is missing has been reported and is empty in the fallback.
pub(crate) fn name(given: &Option<LitStr>) -> String {
    given.as_ref().map(LitStr::value).unwrap_or_default()
}
