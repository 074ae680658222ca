package artifact

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/spillway-ml/spillway/activities"
)

// Supported lists the URL forms that FromURL takes, for messages and help.
const Supported = "file:///absolute/directory"

// FromURL returns the store that location names. A file URL is a directory on this host, which is created where needed.
func FromURL(location string) (activities.Store, error) {
	dir, err := directory(location)
	if err != nil {
		return nil, fmt.Errorf("artifact store: %w; supported: %s", err, Supported)
	}
	return Open(dir)
}

// URL returns the location under which FromURL opens the store in dir, which must be absolute.
func URL(dir string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String()
}

// directory returns the directory of a file URL. Its errors never repeat the user part of the URL: it may hold a
// secret.
func directory(location string) (string, error) {
	parsed, err := url.Parse(location)
	if err != nil {
		return "", errors.New("the location is not a URL")
	}
	switch {
	case parsed.Scheme == "":
		return "", fmt.Errorf("%q has no scheme", parsed.Redacted())
	case parsed.Scheme != "file":
		return "", fmt.Errorf("scheme %q is not supported", parsed.Scheme)
	case parsed.User != nil:
		return "", errors.New("a file URL has no user")
	case parsed.Host != "" && parsed.Host != "localhost":
		return "", fmt.Errorf("%q names another host: write three slashes before the path", parsed.Redacted())
	case parsed.RawQuery != "" || parsed.Fragment != "":
		return "", fmt.Errorf("%q has a query or a fragment: write %%3F for a question mark and %%23 for a number sign",
			parsed.Redacted())
	case !filepath.IsAbs(filepath.FromSlash(parsed.Path)):
		return "", fmt.Errorf("%q is not absolute", parsed.Redacted())
	}
	return filepath.FromSlash(parsed.Path), nil
}
