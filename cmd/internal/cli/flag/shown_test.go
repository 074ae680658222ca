package flag_test

import (
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
)

func TestWhatIsShownHasNoSecret(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"":                                    `""`,
		"files":                               "files",
		"s3://bucket/prefix":                  "s3://bucket/prefix",
		"s3://AKIA:hid/den@bucket/p":          "s3://...@bucket/p",
		"s3://bucket/p?region=x&secret=hid":   "s3://bucket/p?...",
		"https://a:b@host/path":               "https://...@host/path",
		"http://host/path?who@where":          "http://host/path?...",
		"nats://user:a/b@c@127.0.0.1:4222/db": "nats://...@127.0.0.1:4222/db",
	} {
		if got := flag.Shown(value); got != want {
			t.Errorf("%q is shown as %q, want %q", value, got, want)
		}
	}
}
