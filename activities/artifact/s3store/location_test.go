package s3store_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/artifact/s3store"
)

func TestLocationsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]s3store.Location{
		"s3://my-bucket": {Bucket: "my-bucket"},
		"s3://my.bucket/a/b_c.d/?region=eu-west-1": {Bucket: "my.bucket", Prefix: "a/b_c.d", Region: "eu-west-1"},
		"s3://bucket/p?endpoint=https://s3.example.com:9000&region=x1": {
			Bucket: "bucket", Prefix: "p", Region: "x1", Endpoint: "https://s3.example.com:9000",
		},
		"s3://bucket/p?endpoint=http://127.0.0.1:9000": {Bucket: "bucket", Prefix: "p", Endpoint: "http://127.0.0.1:9000"},
		"s3://bucket/p?endpoint=http://minio:9000":     {Bucket: "bucket", Prefix: "p", Endpoint: "http://minio:9000"},
		"s3://bucket?sse=aws:kms&kms-key=arn:aws:kms:eu-west-1:123:key/1-2": {
			Bucket: "bucket", Encryption: "aws:kms", KMSKey: "arn:aws:kms:eu-west-1:123:key/1-2",
		},
	} {
		got, err := s3store.Parse(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("Parse(%q) (-want +got):\n%s%v", text, diff, err)
		}
		if again, err := s3store.Parse(got.String()); err != nil || again != got {
			t.Errorf("%q is written as %q, which is read as %+v, %v", text, got, again, err)
		}
	}
}

func TestMistakesInLocationsAreNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                      `neither "files" nor an s3:// location`,
		"http://bucket/p":                       `neither "files" nor an s3:// location`,
		"s3:///p":                               "names no bucket",
		"s3://Bucket/p":                         "is not the name of a bucket",
		"s3://ab":                               "is not the name of a bucket",
		"s3://a..b/p":                           "is not the name of a bucket",
		"s3://bucket:80/p":                      "is not the name of a bucket",
		"s3://key:hidden@bucket/p":              "credentials do not belong into the location",
		"s3://bucket/../p":                      "the prefix",
		"s3://bucket/a//b":                      "the prefix",
		"s3://bucket/a b":                       "the prefix",
		"s3://bucket/.hidden":                   "the prefix",
		"s3://bucket/p#hidden":                  "fragment",
		"s3://bucket/p?region=":                 "the parameter region is empty",
		"s3://bucket/p?region=a1&region=b1":     "region is given twice",
		"s3://bucket/p?region=Ireland!":         "is not the name of a region",
		"s3://bucket/p?secret=hidden":           `the parameter "secret" is none of endpoint, kms-key, region, sse`,
		"s3://bucket/p?%zz":                     "no list of name=value",
		"s3://bucket/p?sse=none":                "sse is AES256",
		"s3://bucket/p?kms-key=k":               "kms-key needs sse=aws:kms",
		"s3://bucket/p?sse=aws:kms&kms-key=a b": "is not the ID or ARN of a key",
		"s3://bucket/p?endpoint=s3.example.com": "the endpoint is not a URL",
		"s3://bucket/p?endpoint=https://u:hidden@s3.example.com": "more than a host and a port",
		"s3://bucket/p?endpoint=https://s3.example.com/x":        "more than a host and a port",
		"s3://bucket/p?endpoint=http://s3.example.com":           "is not encrypted",
		"s3://bu\x7fcket": "not a URL",
	} {
		_, err := s3store.Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") &&
			!strings.Contains(text, ".hidden") {
			t.Errorf("Parse(%q): %v, want %q and no secret", text, err, want)
		}
	}
	if _, err := s3store.New(s3store.Location{Bucket: "bucket"}, s3store.Options{}); err == nil ||
		!strings.Contains(err.Error(), "region=") {
		t.Errorf("without a region: %v", err)
	}
}

func TestThePlaceIsWhichObjectsThereAre(t *testing.T) {
	t.Parallel()
	place := func(text string) string {
		location, err := s3store.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return location.Place()
	}
	if place("s3://bucket/p/?region=eu-west-1&sse=AES256") != place("s3://bucket/p") ||
		place("s3://bucket/p") == place("s3://bucket/q") ||
		place("s3://bucket/p?endpoint=http://127.0.0.1:1/") != place("s3://bucket/p?endpoint=http://127.0.0.1:1") ||
		place("s3://bucket/p?endpoint=http://127.0.0.1:1") == place("s3://bucket/p") {
		t.Error("a place is bucket, prefix and endpoint, and nothing else")
	}
}
