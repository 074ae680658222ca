// Package artifact keeps artifacts as files named by their digest.
//
// A store is a directory: the bytes whose SHA-256 is "abcdef…" are the file ab/cdef…, written once and never changed.
// Putting the same bytes twice is one file, and reading checks the digest, so that a task never computes on wrong
// bytes. Nothing is cached in memory; processes of one host share a store by opening the same directory.
package artifact
