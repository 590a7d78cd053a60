/* The physical limit of a CPU pipeline: libjpeg-turbo decoding one region of each image, and nothing else. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

struct failure {
  struct jpeg_error_mgr manager;
  jmp_buf back;
};

static void fail(j_common_ptr info) { longjmp(((struct failure *)info->err)->back, 1); }
static void silent(j_common_ptr info) { (void)info; }

/* window: y, x, height, width. out: height * width * 3 bytes. row: 3 bytes for each column of the image. */
static int decode(struct jpeg_decompress_struct *info, const unsigned char *bytes, unsigned long length,
                  const int *window, int fast, unsigned char *row, unsigned char *out) {
  jpeg_mem_src(info, bytes, length);
  jpeg_read_header(info, TRUE);
  info->out_color_space = JCS_RGB;
  info->dct_method = fast ? JDCT_IFAST : JDCT_ISLOW;
  jpeg_start_decompress(info);
  JDIMENSION left = window[1], width = window[3];
  jpeg_crop_scanline(info, &left, &width); /* moves `left` to a block's edge */
  jpeg_skip_scanlines(info, window[0]);
  for (int y = 0; y < window[2]; ++y) {
    jpeg_read_scanlines(info, &row, 1);
    memcpy(out + (size_t)y * window[3] * 3, row + (window[1] - left) * 3, (size_t)window[3] * 3);
  }
  jpeg_abort_decompress(info);
  return 0;
}

/* Decodes `count` regions, the i-th to out + i * stride. Returns how many images it could not read. */
int decode_regions(int count, const unsigned char *const *bytes, const unsigned long *lengths, const int *windows,
                   int fast, unsigned char *out, size_t stride) {
  struct jpeg_decompress_struct info;
  struct failure failure;
  unsigned char *row = malloc(65536 * 3);
  volatile int bad = 0, i = 0;
  info.err = jpeg_std_error(&failure.manager);
  failure.manager.error_exit = fail;
  failure.manager.output_message = silent;
  jpeg_create_decompress(&info);
  for (; i < count; ++i) {
    if (setjmp(failure.back)) {
      jpeg_abort_decompress(&info);
      ++bad;
    } else {
      decode(&info, bytes[i], lengths[i], windows + 4 * i, fast, row, out + i * stride);
    }
  }
  jpeg_destroy_decompress(&info);
  free(row);
  return bad;
}
