// Package artifact has what every store of artifacts keeps to, and the store in files.
//
// A store in files is a directory: the bytes whose SHA-256 is "abcdef…" are the file ab/cdef…, written once and
// never changed. Putting the same bytes twice is one file, and reading checks the digest, so that a task never
// computes on wrong bytes. Nothing is cached in memory; processes of one host share a store by opening the same
// directory.
//
// Package s3store keeps artifacts in a bucket, relay hands them on to processes without credentials, stores opens the
// one that a location names, and storetest tries whether a store keeps to Store.
package artifact
