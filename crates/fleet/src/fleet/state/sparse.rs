//! Storage for data that most nodes do not have. An empty value takes only one pointer.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

pub trait Empty: PartialEq + Sized + 'static {
    const EMPTY: &'static Self;

    fn empty() -> Self;
}

/// A boxed value. It allocates nothing while it is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sparse<T>(Option<Box<T>>);

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Empty> Sparse<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Changes the value. If the value is empty afterwards, its memory is freed.
    pub(super) fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let value = self.0.get_or_insert_with(|| Box::new(T::empty()));
        let result = change(value);
        if **value == *T::EMPTY {
            self.0 = None;
        }
        result
    }

    /// Changes the value, if there is one.
    pub(super) fn change_present(&mut self, change: impl FnOnce(&mut T)) {
        if !self.is_empty() {
            self.change(change);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

impl<T: Empty> From<T> for Sparse<T> {
    fn from(value: T) -> Self {
        Self((value != *T::EMPTY).then(|| Box::new(value)))
    }
}

impl<T: Empty> Deref for Sparse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Empty for Vec<u8> {
        const EMPTY: &'static Self = &Self::new();

        fn empty() -> Self {
            Self::new()
        }
    }

    #[test]
    fn an_empty_value_is_freed() {
        let mut bytes = Sparse::<Vec<u8>>::default();
        assert_eq!((bytes.len(), size_of::<Sparse<Vec<u8>>>()), (0, 8));
        bytes.change(|bytes| bytes.push(1));
        assert_eq!(*bytes, [1]);
        bytes.change_present(Vec::clear);
        assert!(bytes.is_empty());
        assert_eq!(bytes, Sparse::from(Vec::new()));
    }
}
