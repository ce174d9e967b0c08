// Adds and subtracts over gRPC with @grpc/grpc-js: a unary call, and one on a stream.
'use strict';
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const { inference } = grpc.loadPackageDefinition(
  loader.loadSync(process.argv[3], { keepCase: true, bytes: Buffer }),
);
const client = new inference.GRPCInferenceService(
  process.argv[2],
  grpc.credentials.createInsecure(),
);
const ones = Buffer.alloc(64);
for (let at = 0; at < 64; at += 4) ones.writeInt32LE(1, at);
const request = {
  model_name: 'simple',
  inputs: ['INPUT0', 'INPUT1'].map((name) => ({ name, datatype: 'INT32', shape: [1, 16] })),
  raw_input_contents: [ones, ones],
};

function check(answer) {
  if (answer.raw_output_contents[0].readInt32LE(60) !== 2) throw new Error('wrong sum');
}

client.ModelInfer(request, (error, answer) => {
  if (error) throw error;
  check(answer);
  client.ModelInfer({ ...request, model_name: 'missing' }, (refused) => {
    const words = "Request for unknown model: 'missing' is not found";
    if (refused.code !== grpc.status.NOT_FOUND || refused.details !== words) throw refused;
    const stream = client.ModelStreamInfer();
    stream.on('data', ({ error_message: message, infer_response: streamed }) => {
      if (message) throw new Error(message);
      check(streamed);
      stream.end();
    });
    stream.on('end', () => console.log('PASS'));
    stream.write(request);
  });
});
