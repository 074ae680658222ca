package s3store_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/artifact/s3store"
	"github.com/spillway-ml/spillway/activities/artifact/s3store/s3test"
)

// server is a small S3.
type server struct{ *s3test.Server }

func newServer(t *testing.T) *server {
	t.Helper()
	return &server{s3test.Start(t)}
}

const bucket = s3test.Bucket

// store returns a store on the server.
func (s *server) store(t *testing.T, change ...func(*s3store.Location, *s3store.Options)) *s3store.Store {
	t.Helper()
	location := s3store.Location{Bucket: bucket, Prefix: "state", Region: "us-east-1", Endpoint: s.URL}
	options := s3store.Options{
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""), Spool: t.TempDir(),
	}
	for _, change := range change {
		change(&location, &options)
	}
	store, err := s3store.New(location, options)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func digestKey(digest string) string { return "state/" + digest[:2] + "/" + digest[2:] }

// listed is all that a store lists.
func listed(t *testing.T, store *s3store.Store) (all []artifact.Info) {
	t.Helper()
	err := store.List(t.Context(), func(info artifact.Info) error {
		all = append(all, info)
		return nil
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("listed %d, %v", len(all), err)
	}
	return all
}

var _ artifact.Store = (*s3store.Store)(nil)
