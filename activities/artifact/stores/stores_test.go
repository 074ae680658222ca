package stores_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/artifact/relay"
	"github.com/spillway-ml/spillway/activities/artifact/s3store"
	"github.com/spillway-ml/spillway/activities/artifact/stores"
)

func TestEachLocationOpensItsStore(t *testing.T) {
	t.Parallel()
	role := map[string]string{"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "eu-west-1"}
	getenv := func(name string) string { return role[name] }
	store, err := stores.Open(artifact.URL(t.TempDir()), getenv)
	if _, is := store.(*artifact.Files); !is || err != nil {
		t.Errorf("a file URL: %T, %v", store, err)
	}
	store, err = stores.Open("http://artifacts:token@127.0.0.1:1", getenv)
	if _, is := store.(*relay.Client); !is || err != nil {
		t.Errorf("an http URL: %T, %v", store, err)
	}
	store, err = stores.Open("s3://bucket/state", getenv)
	in, is := store.(*s3store.Store)
	if !is || err != nil || in.Location().Region != "eu-west-1" {
		t.Errorf("an s3 URL: %T, %v; want the region of the function", store, err)
	}
}

func TestMistakesAreNamedAndSecretsAreNot(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	for location, want := range map[string]string{
		"s3://bucket/state?region=eu-west-1":  "AWS_ACCESS_KEY_ID",
		"s3://key:hidden@bucket/state":        "credentials do not belong",
		"http://artifacts:hidden@192.0.2.1:1": "is not on this machine",
		"http://user:hidden@127.0.0.1:x":      "not that of a relay",
		"ftp://host/a":                        `scheme "ftp" is not supported`,
		"gs://bucket/state":                   "supported: file:///absolute/directory, s3://BUCKET/PREFIX",
		"S3://key:hidden@bucket/state":        "credentials do not belong",
	} {
		_, err := stores.Open(location, none)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("Open(%q): %v, want %q and no secret", location, err, want)
		}
	}
}
