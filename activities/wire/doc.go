// Package wire fixes the messages that cross process borders: their versions, subjects and streams.
//
// Every message is JSON with a version. A reader refuses versions it does not know and ignores fields it does not know,
// so that a field may be added without a new version. Golden files in testdata keep the encoding from changing by
// accident.
package wire
