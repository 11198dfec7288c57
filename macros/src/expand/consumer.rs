//! `#[derive(Consumer)]`.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;

use super::{name, on};
use crate::model::{Consumer, Isolation, Listed};

/// `impl Consumer`, and the checks of the listed types.
pub(crate) fn consumer(consumer: &Consumer) -> TokenStream {
    let on_consumer = on(&consumer.generics, &consumer.ident, &quote!(::tidings::Consumer));
    let (consumer_name, source) = (name(&consumer.name), name(&consumer.source));
    let (accepts, checks) = accepts(consumer);
    let options = options(consumer);
    let arms = consumer.listed().map(arm);
    quote_spanned! {Span::mixed_site()=>
        #on_consumer {
            const NAME: &'static str = #consumer_name;
            const SOURCE: &'static str = #source;
            const ACCEPTS: &'static [::tidings::consumer::Accepts] = #accepts;

            fn options() -> ::tidings::consumer::Options {
                #options
            }

            fn dispatch<'dispatch>(
                &'dispatch self,
                envelope: &'dispatch ::tidings::Envelope,
                tx: &'dispatch mut ::tidings::Tx<'_>,
            ) -> ::tidings::consumer::Dispatch<'dispatch> {
                match envelope.r#type.as_str() {
                    #(#arms)*
                    _ => ::tidings::consumer::unhandled(envelope),
                }
            }
        }
        #checks
    }
}

/// The list of the types, and their checks if those stand beside the impl.
///
/// Only a constant without parameters is evaluated when it is defined. That of a consumer with parameters is evaluated
/// when the consumer is used, so its checks stand in the list itself.
fn accepts(consumer: &Consumer) -> (TokenStream, TokenStream) {
    let accepts = consumer.listed().map(|listed| {
        let path = &listed.path;
        quote_spanned!(place(listed)=> ::tidings::consumer::Accepts::of::<#path>())
    });
    let names = consumer.listed().map(Listed::name);
    let names = quote!(&[#(#names),*]);
    if consumer.generics.params.is_empty() {
        let ident = &consumer.ident;
        let checks = checks(consumer, &quote!(<#ident as ::tidings::Consumer>::ACCEPTS), &quote!(NAMES));
        let beside = quote! {
            const _: () = {
                const NAMES: &[&::core::primitive::str] = #names;
                #(const _: () = #checks;)*
            };
        };
        (quote!(&[#(#accepts),*]), beside)
    } else {
        let checks = checks(consumer, &quote_spanned!(Span::mixed_site()=> &accepts), &names);
        let within = quote_spanned! {Span::mixed_site()=>
            &{
                let accepts = [#(#accepts),*];
                #(#checks;)*
                accepts
            }
        };
        (within, TokenStream::new())
    }
}

/// Each type belongs in its list, and has a type of its own. The checks see the types through the list, so that one that
/// is no event is not reported here as well.
fn checks(consumer: &Consumer, accepts: &TokenStream, names: &TokenStream) -> Vec<TokenStream> {
    let consumer_name = name(&consumer.name);
    let first_command = consumer.events.len();
    let check = |(at, listed): (usize, &Listed)| {
        let place = place(listed);
        if at < first_command {
            quote_spanned!(place=> ::tidings::consumer::check::event(#accepts, #names, #at))
        } else {
            quote_spanned!(place=> ::tidings::consumer::check::command(#accepts, #names, #at, #consumer_name))
        }
    };
    consumer.listed().enumerate().map(check).collect()
}

/// The framework's defaults, and over them what the attribute sets.
fn options(consumer: &Consumer) -> TokenStream {
    let attempts = consumer.attempts.map(|attempts| quote!(options.attempts = #attempts;));
    let delay = consumer.delay.map(|delay| {
        let (min, max) = (duration(delay.min), duration(delay.max));
        quote!(options.delay_min = #min; options.delay_max = #max;)
    });
    let timeout = consumer.timeout.map(duration).map(|timeout| quote!(options.timeout = #timeout;));
    let concurrency = consumer.concurrency.map(|concurrency| {
        let concurrency = concurrency as usize;
        quote!(options.concurrency = #concurrency;)
    });
    let isolation = consumer.isolation.map(isolation).map(|isolation| quote!(options.isolation = #isolation;));
    let set = quote!(#attempts #delay #timeout #concurrency #isolation);
    let default = quote!(<::tidings::consumer::Options as ::core::default::Default>::default());
    if set.is_empty() {
        return default;
    }
    quote! {
        let mut options = #default;
        #set
        options
    }
}

/// One type's arm. Its place is the type's in the list, so that a missing `Handle` impl is reported there.
fn arm(listed: &Listed) -> TokenStream {
    let path = &listed.path;
    quote_spanned! {place(listed)=>
        r#type if r#type == <#path as ::tidings::Event>::TYPE => {
            ::std::boxed::Box::pin(::tidings::consumer::handle::<Self, #path>(self, envelope, tx))
        }
    }
}

/// Where the type is listed, seen from the derive.
fn place(listed: &Listed) -> Span {
    Span::mixed_site().located_at(listed.path.span())
}

fn duration(duration: Duration) -> TokenStream {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    match u64::try_from(duration.as_millis()) {
        Ok(_) if nanos == 0 => quote!(::core::time::Duration::from_secs(#seconds)),
        Ok(millis) if nanos % 1_000_000 == 0 => quote!(::core::time::Duration::from_millis(#millis)),
        Ok(_) | Err(_) => quote!(::core::time::Duration::new(#seconds, #nanos)),
    }
}

fn isolation(isolation: Isolation) -> TokenStream {
    match isolation {
        Isolation::ReadCommitted => quote!(::tidings::consumer::Isolation::ReadCommitted),
        Isolation::RepeatableRead => quote!(::tidings::consumer::Isolation::RepeatableRead),
        Isolation::Serializable => quote!(::tidings::consumer::Isolation::Serializable),
    }
}
