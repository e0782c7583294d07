package main

import (
	_ "github.com/apache/rocketmq-client-go/v2"
	_ "github.com/apache/rocketmq-client-go/v2/admin"
)

func main() {}
