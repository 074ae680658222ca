// Package s3check tries what Spillway keeps in S3 on a real server of it, versitygw. It is a module of its own, so that
// the server and what it needs are in no product binary.
package s3check
