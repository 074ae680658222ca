// Package oidccheck tries signing in with a real OpenID Connect provider, which runs in the test's process: the
// certified library of Zitadel, with the pages of its example. The module is one of its own so that none of the
// provider's code is in a product binary.
package oidccheck
