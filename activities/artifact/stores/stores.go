// Package stores opens the store that a process was told of: files, the relay of an engine, or S3.
package stores

import (
	"errors"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/artifact/relay"
	"github.com/spillway-ml/spillway/activities/artifact/s3store"
)

// Open returns the store that location names, for a process that puts and opens artifacts and removes none. A file URL
// is a directory on this host, which is created where needed; an http URL is the relay of an engine on this machine; an
// s3 URL is a bucket, for which getenv has the credentials of the function's role, as AWS Lambda gives them. Its errors
// repeat no secret.
func Open(location string, getenv func(string) string) (activities.Store, error) {
	scheme, _, _ := strings.Cut(location, ":")
	switch strings.ToLower(scheme) {
	case "http":
		store, err := relay.Dial(location)
		if err != nil {
			return nil, fmt.Errorf("artifact store: %w", err)
		}
		return store, nil
	case "s3":
		store, err := open(location, getenv)
		if err != nil {
			return nil, fmt.Errorf("artifact store: %w; supported: %s", err, s3store.Supported)
		}
		return store, nil
	}
	store, err := artifact.FromURL(location)
	if err != nil && strings.ToLower(scheme) != "file" {
		return nil, fmt.Errorf("%w, %s", err, s3store.Supported)
	}
	return store, err
}

func open(location string, getenv func(string) string) (activities.Store, error) {
	place, err := s3store.Parse(location)
	if err != nil {
		return nil, err
	}
	if place.Region == "" {
		place.Region = getenv("AWS_REGION")
	}
	key, secret := getenv("AWS_ACCESS_KEY_ID"), getenv("AWS_SECRET_ACCESS_KEY")
	if key == "" || secret == "" {
		return nil, errors.New("there are no credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: AWS sets them for " +
			"a function with a role")
	}
	return s3store.New(place, s3store.Options{
		Credentials: credentials.NewStaticCredentialsProvider(key, secret, getenv("AWS_SESSION_TOKEN")),
	})
}
