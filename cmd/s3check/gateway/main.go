// Gateway serves S3 from a directory, which is what the tests of this module store artifacts in: a real server of
// another maker, in a process of its own because it changes its working directory and can be killed.
//
//	gateway DIR HOST:PORT [CERTIFICATE KEY]
//
// With the files of a certificate and of its key, as PEM, it speaks TLS. The credentials are in ROOT_ACCESS_KEY and
// ROOT_SECRET_KEY; USERS names a directory whose users.json has further users, who may do what is theirs. It ends with
// its standard input.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	if err := serve(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

func serve() error {
	if len(os.Args) != 3 && len(os.Args) != 5 {
		return errors.New("usage: gateway DIR HOST:PORT [CERTIFICATE KEY]")
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	buckets := os.Args[1]
	if err := os.MkdirAll(buckets, 0o700); err != nil {
		return err
	}
	// Extended attributes go with the file that they are of; in files beside it, a removal and a write at the same time
	// leave one without the other.
	if err := (meta.XattrMeta{}).Test(buckets); err != nil {
		return fmt.Errorf("%s cannot have extended attributes: %w; name a directory that can with TMPDIR", buckets, err)
	}
	backend, err := posix.New(buckets, meta.XattrMeta{}, posix.PosixOpts{Concurrency: 64})
	if err != nil {
		return err
	}
	config := &embedgw.Config{
		RootUserAccess: os.Getenv("ROOT_ACCESS_KEY"), RootUserSecret: os.Getenv("ROOT_SECRET_KEY"),
		Region: "us-east-1", Ports: []string{os.Args[2]}, Quiet: true, KeepAlive: true,
		MaxConnections: 1 << 12, MaxRequests: 1 << 12, MultipartMaxParts: 10000, IAMDir: os.Getenv("USERS"),
		// It has few users, and a cache of them that is given no times is looked through without a pause, which takes a core.
		IAMCacheDisable: true,
	}
	if len(os.Args) == 5 {
		config.CertFile, config.KeyFile = os.Args[3], os.Args[4]
	}
	err = embedgw.RunVersityGW(ctx, backend, config)
	if ctx.Err() == nil { // else it has waited in vain for connections that nobody uses any more
		return err
	}
	return nil
}
