// An xDS management server as Envoy Gateway has one: go-control-plane's snapshot cache, with RateLimitConfig resources.
//
// ads NODE [ADDRESS] serves that node. It takes commands on standard input, one a line,
//
//	push VERSION FILE   the resources of a file (a JSON list of RateLimitConfig) become the snapshot of the node
//
// and says on standard output what it hears:
//
//	first VERSION       a stream has begun, with that version
//	ack VERSION         a client has accepted
//	nack TEXT           a client has refused
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
)

func main() {
	node, address := os.Args[1], "127.0.0.1:0"
	if len(os.Args) > 2 {
		address = os.Args[2]
	}
	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	callbacks := server.CallbackFuncs{
		StreamRequestFunc: func(_ int64, request *discovery.DiscoveryRequest) error {
			switch {
			case request.GetErrorDetail() != nil:
				fmt.Printf("nack %s\n", request.GetErrorDetail().GetMessage())
			case request.GetResponseNonce() != "":
				fmt.Printf("ack %s\n", request.GetVersionInfo())
			default:
				fmt.Printf("first %q\n", request.GetVersionInfo())
			}
			return nil
		},
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	service := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(service, server.NewServer(context.Background(), snapshots, callbacks))
	go func() { log.Fatal(service.Serve(listener)) }()
	fmt.Printf("ads listening on %s\n", listener.Addr())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) != 3 || words[0] != "push" {
			log.Fatalf("%q is no command", lines.Text())
		}
		if err := push(snapshots, node, words[1], words[2]); err != nil {
			log.Fatal(err)
		}
	}
}

func push(snapshots cache.SnapshotCache, node, version, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var configs []json.RawMessage
	if err := json.Unmarshal(text, &configs); err != nil {
		return err
	}
	var resources []types.Resource
	for _, config := range configs {
		message := &ratelimit.RateLimitConfig{}
		if err := protojson.Unmarshal(config, message); err != nil {
			return err
		}
		resources = append(resources, message)
	}
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: resources})
	if err != nil {
		return err
	}
	return snapshots.SetSnapshot(context.Background(), node, snapshot)
}
