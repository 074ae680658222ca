package s3store

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strings"
)

// Supported is the form of a location, for messages and help.
const Supported = "s3://BUCKET/PREFIX?region=REGION, with endpoint=URL, sse=AES256 or sse=aws:kms and kms-key=ID " +
	"where needed"

// A Location says where a store is. It holds no secret.
type Location struct {
	// Bucket is the name of the bucket.
	Bucket string
	// Prefix begins the key of every object, without a slash at its end; empty is the whole bucket. It belongs to one
	// state directory.
	Prefix string
	// Region is that of the bucket, such as "eu-west-1"; empty where the configuration of AWS says it.
	Region string
	// Endpoint is the URL of a server of S3's API that is not AWS; empty is AWS.
	Endpoint string
	// Encryption is how the server encrypts each object: "AES256", "aws:kms", "aws:kms:dsse", or empty for what the
	// bucket is set to.
	Encryption string
	// KMSKey is the ID or the ARN of the key with which AWS KMS encrypts; empty is that of the account.
	KMSKey string
}

// What names may be made of. They are no regular expressions: compiling one costs every function that starts.
const (
	lowers  = "abcdefghijklmnopqrstuvwxyz0123456789"
	letters = lowers + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// madeOf says whether a name has as many bytes as it may, and only these.
func madeOf(name, bytes string, least, most int) bool {
	return len(name) >= least && len(name) <= most && strings.Trim(name, bytes) == ""
}

// isBucket says whether a name can be that of a bucket:
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
func isBucket(name string) bool {
	return madeOf(name, lowers+".-", 3, 63) && strings.Trim(name, ".-") == name && !strings.Contains(name, "..")
}

// isPrefix leaves out what needs escaping in some tool, and what URLs and paths take for something else.
func isPrefix(name string) bool {
	return madeOf(name, letters+"._/-", 1, 512) && path.Clean(name) == name && !strings.HasPrefix(name, ".")
}

// parameters are what may follow the question mark.
var parameters = []string{"endpoint", "kms-key", "region", "sse"}

// Parse reads a location as String writes it. Its errors repeat no user part, and of an unknown parameter the name
// alone: the rest may be secrets.
func Parse(text string) (Location, error) {
	parsed, err := url.Parse(text)
	if err != nil {
		return Location{}, errors.New("the location is not a URL")
	}
	switch {
	case parsed.Scheme != "s3":
		return Location{}, errors.New(`it is neither "files" nor an s3:// location`)
	case parsed.User != nil:
		return Location{}, errors.New("credentials do not belong into the location: they come from the environment, the " +
			"shared files or the role, as everywhere with AWS")
	case parsed.Fragment != "":
		return Location{}, errors.New("the location has a fragment (#): it is not part of one")
	}
	query, err := url.ParseQuery(parsed.RawQuery)
	if err != nil {
		return Location{}, errors.New("what follows the question mark is no list of name=value")
	}
	for name, values := range query {
		if !slices.Contains(parameters, name) {
			return Location{}, fmt.Errorf("the parameter %.40q is none of %s", name, strings.Join(parameters, ", "))
		}
		if len(values) > 1 {
			return Location{}, fmt.Errorf("the parameter %s is given twice", name)
		}
		if values[0] == "" {
			return Location{}, fmt.Errorf("the parameter %s is empty", name)
		}
	}
	l := Location{
		Bucket: parsed.Host, Prefix: strings.Trim(parsed.Path, "/"), Region: query.Get("region"),
		Endpoint: query.Get("endpoint"), Encryption: query.Get("sse"), KMSKey: query.Get("kms-key"),
	}
	return l, l.check()
}

func (l Location) check() error {
	switch {
	case l.Bucket == "":
		return errors.New("the location names no bucket")
	case !isBucket(l.Bucket):
		return fmt.Errorf("%.80q is not the name of a bucket: 3 to 63 lower-case letters, digits, dots and hyphens", l.Bucket)
	case l.Prefix != "" && !isPrefix(l.Prefix):
		return fmt.Errorf("the prefix %.80q is not made of names of letters, digits, '.', '_' and '-', with a slash between "+
			"two of them", l.Prefix)
	case l.Region != "" && !madeOf(l.Region, lowers+"-", 2, 41):
		return fmt.Errorf("%.80q is not the name of a region, such as eu-west-1", l.Region)
	case l.KMSKey != "" && !strings.HasPrefix(l.Encryption, "aws:kms"):
		return errors.New("kms-key needs sse=aws:kms")
	case l.KMSKey != "" && !madeOf(l.KMSKey, letters+":/_-", 1, 2048):
		return fmt.Errorf("%.80q is not the ID or ARN of a key", l.KMSKey)
	}
	switch l.Encryption {
	case "", "AES256", "aws:kms", "aws:kms:dsse":
	default:
		return fmt.Errorf("sse is AES256, aws:kms or aws:kms:dsse, and not %.40q", l.Encryption)
	}
	return checkEndpoint(l.Endpoint)
}

// checkEndpoint refuses what is no address of a server. Credentials are signed with and not sent, but artifacts are
// data: without encryption they go to this machine only.
func checkEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	parsed, err := url.Parse(endpoint)
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" {
		return errors.New("the endpoint is not a URL such as https://s3.example.com")
	}
	if parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" || strings.Trim(parsed.Path, "/") != "" {
		return errors.New("the endpoint has more than a host and a port: write it such as https://s3.example.com:9000")
	}
	if parsed.Scheme == "http" && !private(parsed.Hostname()) {
		return fmt.Errorf("the endpoint %s is not encrypted and not on a private network: write https", parsed.Host)
	}
	return nil
}

// private says whether a host is this machine or of a network that is not the Internet.
func private(host string) bool {
	if host == "localhost" || !strings.Contains(host, ".") && !strings.Contains(host, ":") { // as in a cluster
		return true
	}
	address := net.ParseIP(host)
	return address != nil && (address.IsLoopback() || address.IsPrivate() || address.IsLinkLocalUnicast())
}

// String writes the location as Parse reads it.
func (l Location) String() string {
	query := url.Values{}
	for name, value := range map[string]string{
		"region": l.Region, "endpoint": l.Endpoint, "sse": l.Encryption, "kms-key": l.KMSKey,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	text := url.URL{Scheme: "s3", Host: l.Bucket, RawQuery: query.Encode()}
	if l.Prefix != "" {
		text.Path = "/" + l.Prefix
	}
	return text.String()
}

// Place is the part of the location that says which objects there are: two locations with the same place have the same
// artifacts.
func (l Location) Place() string {
	return Location{Bucket: l.Bucket, Prefix: l.Prefix, Endpoint: strings.TrimRight(l.Endpoint, "/")}.String()
}
