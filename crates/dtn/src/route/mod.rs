//! Where a bundle goes next: static routes and contact plans.
