// Package s3store keeps artifacts as objects of an S3 bucket, named by their digest.
//
// Below its prefix the bytes whose SHA-256 is "abcdef…" are the object ab/cdef…, as in the directory of a files store,
// written once on the condition that it is not there (If-None-Match). Reading checks the digest. Beside the artifacts
// lie what removing them needs, all of it small objects:
//
//	about/DIGEST/mark-…      somebody has put the artifact again, or asked for it, at the time of the object
//	about/DIGEST/discarded   it is about to be removed
//	about/DIGEST/again-…     the bytes once more: they were put while the artifact was about to be removed
//	pins/DIGEST/…            somebody from outside has sent it
//	spillway-owner           which state directory the prefix belongs to
//
// S3 cannot rename, so nothing is taken aside. Delete removes an object only after it has seen that no mark came behind
// the word that it is discarded; whoever puts the same bytes writes the mark first and then looks for that word. Since S3
// shows at once what was written, one of the two sees the other, and who puts bytes that are discarded stores them under
// a name of their own, which nobody is about to remove. So no time decides whether what was put stays.
package s3store
