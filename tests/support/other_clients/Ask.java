import java.util.Arrays;
import java.util.List;
import triton.client.InferInput;
import triton.client.InferRequestedOutput;
import triton.client.InferResult;
import triton.client.InferenceServerClient;
import triton.client.pojo.DataType;

/** Adds and subtracts with Triton's Java client; both forms of tensors, JSON and binary. */
public class Ask {
  public static void main(String[] arguments) throws Exception {
    int[] ones = new int[16];
    Arrays.fill(ones, 1);
    for (boolean binary : new boolean[] {false, true}) {
      InferInput left = new InferInput("INPUT0", new long[] {1L, 16L}, DataType.INT32);
      InferInput right = new InferInput("INPUT1", new long[] {1L, 16L}, DataType.INT32);
      left.setData(ones, binary);
      right.setData(ones, binary);
      InferenceServerClient client = new InferenceServerClient(arguments[0], 5000, 5000);
      InferResult result =
          client.infer(
              "simple",
              List.of(left, right),
              List.of(
                  new InferRequestedOutput("OUTPUT0", binary),
                  new InferRequestedOutput("OUTPUT1", binary)));
      if (result.getOutputAsInt("OUTPUT0")[15] != 2 || result.getOutputAsInt("OUTPUT1")[15] != 0) {
        throw new IllegalStateException("wrong sum");
      }
    }
    System.out.println("PASS");
    System.exit(0);
  }
}
